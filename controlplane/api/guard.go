package api

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
)

// strangerTimeout bounds the reading of a body that nobody here wants.
const strangerTimeout = 5 * time.Second

// bodyTimeout is how long a caller with the token may take to send a request's body.
const bodyTimeout = 30 * time.Second

// Guard refuses what a page in a browser could send without its user's knowledge: a request with an Origin that is not
// among origins, and one that reached a loopback listener under another name than loopback's or one of hosts (DNS
// rebinding). It waits for no body: whoever is refused is told at once, and the connection ends.
func Guard(next http.Handler, origins, hosts []string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		expectNoBody(w, r)
		if origin := r.Header.Get("Origin"); origin != "" && !slices.Contains(origins, origin) {
			http.Error(w, "requests from this origin are not accepted", http.StatusForbidden)
			return
		}
		if onLoopback(r) && !local(r.Host, hosts) {
			http.Error(w, "this is not the name of this host", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// expectNoBody lets net/http answer before it has read the rest of a request, and not wait for that for long.
func expectNoBody(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength == 0 {
		return
	}
	if r.ProtoMajor == 1 {
		w.Header().Set("Connection", "close")
	}
	http.NewResponseController(w).SetReadDeadline(time.Now().Add(strangerTimeout))
}

// expectBody undoes expectNoBody: the body may take so long to arrive, and the connection stays.
func expectBody(w http.ResponseWriter, r *http.Request, timeout time.Duration) {
	if r.ContentLength == 0 {
		return
	}
	w.Header().Del("Connection")
	c := http.NewResponseController(w)
	c.SetReadDeadline(time.Now().Add(timeout))
	r.Body = &timedBody{r.Body, c}
}

// timedBody is a body with a deadline that ends with it: an answer may go on for longer.
type timedBody struct {
	io.ReadCloser
	connection *http.ResponseController
}

func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.connection.SetReadDeadline(time.Time{})
	}
	return n, err
}

// onLoopback reports whether the request came in on a loopback address.
func onLoopback(r *http.Request) bool {
	addr, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && addr.IP.IsLoopback()
}

// local reports whether a Host header names this machine's loopback, or is an accepted name of it.
func local(host string, accepted []string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback() || strings.EqualFold(host, "localhost") || slices.Contains(accepted, host)
}

// authenticate lets through who holds the token. Others are told in the protocol that they speak.
func (a *API) authenticate(next http.Handler) http.Handler {
	refuse := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a.holdsToken(r.Header.Get("Authorization")) {
			expectBody(w, r, a.bodyTimeout)
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
