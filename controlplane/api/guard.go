package api

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"

	"connectrpc.com/connect"
)

// guard refuses what a page in a browser could send without its user's knowledge: a request from an unknown Origin,
// and one that reached a loopback listener under another host's name (DNS rebinding).
func (a *API) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if origin := r.Header.Get("Origin"); origin != "" && !slices.Contains(a.options.Origins, origin) {
			http.Error(w, "requests from this origin are not accepted", http.StatusForbidden)
			return
		}
		if onLoopback(r) && !a.local(r.Host) {
			http.Error(w, "this is not the name of this host", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// onLoopback reports whether the request came in on a loopback address.
func onLoopback(r *http.Request) bool {
	addr, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && addr.IP.IsLoopback()
}

// local reports whether a Host header names this machine's loopback, or is an accepted name of it.
func (a *API) local(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback() || strings.EqualFold(host, "localhost") || slices.Contains(a.options.Hosts, host)
}

// authenticate lets through who holds the token. Others are told in the protocol that they speak.
func (a *API) authenticate(next http.Handler) http.Handler {
	refuse := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a.holdsToken(r.Header.Get("Authorization")) {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("WWW-Authenticate", "Bearer")
		err := connect.NewError(connect.CodeUnauthenticated, errors.New("a valid bearer token is required"))
		if refuse.IsSupported(r) {
			refuse.Write(w, r, err) // an error here is a broken connection
			return
		}
		http.Error(w, err.Message(), http.StatusUnauthorized)
	})
}

// holdsToken compares hashes, so that its time tells neither the token nor its length.
func (a *API) holdsToken(authorization string) bool {
	scheme, token, _ := strings.Cut(authorization, " ")
	sum := sha256.Sum256([]byte(token))
	return strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare(sum[:], a.token[:]) == 1
}
