package credential

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/fetch"
)

const (
	defaultTimeout  = 10 * time.Second
	defaultLifetime = 5 * time.Minute // of a token whose endpoint does not say (RFC 6749, section 5.1)
	maxLifetime     = 24 * time.Hour
	maxToken        = 16 << 10 // bytes
	maxAnswer       = 64 << 10 // bytes

	// refusedPause and failedPause are how long an error of OAuth, or that there was no answer, is the answer; a Retry-After
	// may make the second longer, up to maxPause.
	refusedPause = 5 * time.Second
	failedPause  = time.Second
	maxPause     = 30 * time.Second
)

// Words of RFC 8693, sections 2.1 and 3.
const (
	grantExchange   = "urn:ietf:params:oauth:grant-type:token-exchange"
	typeAccessToken = "urn:ietf:params:oauth:token-type:access_token"
	typeJWT         = "urn:ietf:params:oauth:token-type:jwt"
)

// endpoint is a token endpoint, and who the sidecar is there.
type endpoint struct {
	exchanges bool
	config    clientcredentials.Config
	client    *http.Client
	timeout   time.Duration
}

// newEndpoint reaches for nothing. authorities are what its file of them holds now.
func (s *Sources) newEndpoint(
	u *outriggerv1.Upstream, e *outriggerv1.TokenEndpoint, secret string, exchanges bool, authorities []byte,
) (*endpoint, error) {
	timeout := e.GetTimeout().AsDuration()
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	client, err := s.clients.get(fetch.Options{
		CAFile: e.GetCaFile(), PrivateAddresses: e.GetPrivateAddresses(), MaxBytes: maxAnswer,
		Timeout: timeout + time.Second, // the context's comes first
	}, authorities)
	if err != nil {
		return nil, err
	}
	params := url.Values{"resource": {cmp.Or(e.GetResource(), u.GetHttp().GetUrl(), u.GetSse().GetUrl())}}
	if e.GetAudience() != "" {
		params.Set("audience", e.GetAudience())
	}
	return &endpoint{exchanges: exchanges, client: client, timeout: timeout, config: clientcredentials.Config{
		ClientID: e.GetClientId(), ClientSecret: secret, TokenURL: e.GetUrl(), Scopes: e.GetScopes(),
		AuthStyle: oauth2.AuthStyleInHeader, EndpointParams: params,
	}}, nil
}

// grant is what an endpoint gave.
type grant struct {
	token    string
	lifetime time.Duration
}

// failure is why there is no token, in words that anybody may read.
type failure struct {
	detail   string
	cause    error         // for the log, without a word of the endpoint's; may be nil
	answered bool          // the endpoint said so
	refused  bool          // with an error of OAuth
	whole    bool          // it would be the same for others: they need not ask
	pause    time.Duration // how long this is the answer
}

// ask makes one request: for the sidecar itself, or in exchange for a caller's token.
func (e *endpoint) ask(ctx context.Context, subject string) (grant, *failure) {
	c := clientcredentials.Config{
		ClientID: e.config.ClientID, ClientSecret: e.config.ClientSecret, TokenURL: e.config.TokenURL,
		Scopes: e.config.Scopes, AuthStyle: e.config.AuthStyle, EndpointParams: url.Values{},
	}
	for name, values := range e.config.EndpointParams {
		c.EndpointParams[name] = values
	}
	if subject != "" {
		c.EndpointParams.Set("grant_type", grantExchange) // which takes the place of the other
		c.EndpointParams.Set("subject_token", subject)
		c.EndpointParams.Set("subject_token_type", typeAccessToken)
		c.EndpointParams.Set("requested_token_type", typeAccessToken)
	}
	t, err := c.Token(context.WithValue(ctx, oauth2.HTTPClient, e.client))
	if err != nil {
		return grant{}, e.failed(ctx, err)
	}
	return granted(t, subject != "")
}

// granted is a token that can be presented (RFC 6749, section 5.1; RFC 8693, section 2.2.1).
func granted(t *oauth2.Token, exchanged bool) (grant, *failure) {
	unusable := func(what string) (grant, *failure) {
		return grant{}, &failure{detail: "the token endpoint gave a token " + what, whole: true, pause: failedPause}
	}
	if t.TokenType != "" && !strings.EqualFold(t.TokenType, "Bearer") {
		return unusable("of a type that is not spoken here")
	}
	issued, _ := t.Extra("issued_token_type").(string)
	if exchanged && issued != "" && issued != typeAccessToken && issued != typeJWT {
		return unusable("that is no access token")
	}
	if len(t.AccessToken) > maxToken || !presentable(t.AccessToken) {
		return unusable("that cannot stand in a header")
	}
	g := grant{token: t.AccessToken, lifetime: defaultLifetime}
	if !t.Expiry.IsZero() {
		g.lifetime = min(time.Until(t.Expiry), maxLifetime)
	}
	if zero, ok := t.Extra("expires_in").(float64); ok && zero == 0 || g.lifetime <= 0 {
		return unusable("that has expired")
	}
	return g, nil
}

// presentable reports whether a token is one of visible ASCII.
func presentable(token string) bool {
	for i := range len(token) {
		if token[i] <= ' ' || token[i] > '~' {
			return false
		}
	}
	return token != ""
}

// codes are the errors of RFC 6749, section 5.2, and RFC 8707, section 2: whatever else an endpoint says is not repeated.
var codes = map[string]bool{
	"invalid_request": true, "invalid_client": true, "invalid_grant": true, "unauthorized_client": true,
	"unsupported_grant_type": true, "invalid_scope": true, "invalid_target": true,
}

// failed says what an error of package oauth2 means. Its text, which has the endpoint's own words, goes no further.
func (e *endpoint) failed(ctx context.Context, err error) *failure {
	var answer *oauth2.RetrieveError
	switch {
	case errors.As(err, &answer):
		f := refusal(answer)
		f.answered = true
		return f
	case ctx.Err() != nil:
		return &failure{
			detail: fmt.Sprintf("the token endpoint did not answer within %v", e.timeout),
			cause:  ctx.Err(), whole: true, pause: failedPause,
		}
	}
	if cause := reason(err); cause != nil {
		return &failure{detail: "the token endpoint cannot be reached", cause: cause, whole: true, pause: failedPause}
	}
	return &failure{detail: "the token endpoint answered with something else than a token", whole: true, pause: failedPause}
}

// reason is the part of a network's error that holds nothing of what the other side wrote; nil when there is none.
func reason(err error) error {
	if errors.Is(err, fetch.ErrAddress) {
		return fetch.ErrAddress
	}
	var certificate *tls.CertificateVerificationError
	if errors.As(err, &certificate) {
		return certificate
	}
	var network *net.OpError
	if errors.As(err, &network) {
		return network
	}
	return nil
}

// refusal is an answer without a token.
func refusal(r *oauth2.RetrieveError) *failure {
	status := r.Response.StatusCode
	switch {
	case status == http.StatusTooManyRequests || status >= http.StatusInternalServerError:
		return &failure{detail: fmt.Sprintf("the token endpoint answered %d", status), whole: true, pause: retryAfter(r.Response.Header)}
	case r.ErrorCode == "invalid_client", r.ErrorCode == "" && status == http.StatusUnauthorized:
		return &failure{detail: "the token endpoint refused the sidecar (invalid_client)", refused: true, whole: true, pause: refusedPause}
	case codes[r.ErrorCode]:
		return &failure{detail: "the token endpoint refused (" + r.ErrorCode + ")", refused: true, pause: refusedPause}
	case r.ErrorCode != "":
		return &failure{detail: fmt.Sprintf("the token endpoint refused with %d and an error of its own", status), refused: true, pause: refusedPause}
	}
	return &failure{detail: fmt.Sprintf("the token endpoint answered %d without an error of OAuth", status), whole: true, pause: failedPause}
}

// retryAfter is how long an endpoint wants to be left alone, in bounds.
func retryAfter(h http.Header) time.Duration {
	seconds, err := strconv.ParseUint(h.Get("Retry-After"), 10, 31)
	if err != nil {
		return failedPause
	}
	return min(max(time.Duration(seconds)*time.Second, failedPause), maxPause)
}
