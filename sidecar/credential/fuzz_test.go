package credential

import (
	"bytes"
	"io"
	"net/http"
	"regexp"
	"testing"
)

// answering is a network on which one answer comes to everything.
type answering struct {
	status int
	media  string
	body   []byte
}

// RoundTrip implements http.RoundTripper.
func (a answering) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: a.status, Header: http.Header{"Content-Type": {a.media}}, Body: io.NopCloser(bytes.NewReader(a.body)), Request: r,
	}, nil
}

// said are all that a failure may say: words of this package's, a status, a code of OAuth.
var said = regexp.MustCompile(`^the token endpoint (gave a token [a-z ]+|answered( with something else than a token| [0-9]{3}( without an error of OAuth)?)|` +
	`refused( the sidecar)?( \([a-z_]{9,22}\)| with [0-9]{3} and an error of its own))$`)

// FuzzAnswer holds that whatever an endpoint answers is a token that can stand in a header, or a failure in words of ours.
func FuzzAnswer(f *testing.F) {
	for _, body := range []string{
		`{"access_token":"t","token_type":"Bearer","expires_in":3600}`, `{"access_token":"t","token_type":"N_A","expires_in":"60"}`,
		`{"access_token":"a b"}`, `{"error":"invalid_grant","error_description":"x"}`, `{"error":"\u0000","access_token":5}`, "access_token=t&expires_in=-1", `[]`, "",
		`{"access_token":"t","expires_in":1e99}`, `{"access_token":"t","issued_token_type":{}}`,
	} {
		f.Add(200, "application/json", []byte(body))
		f.Add(400, "application/x-www-form-urlencoded", []byte(body))
	}
	f.Fuzz(func(t *testing.T, status int, media string, body []byte) {
		if status < 100 || status > 599 {
			t.Skip()
		}
		e := &endpoint{client: &http.Client{
			Transport:     answering{status, media, body},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}}
		e.config.TokenURL = "https://issuer.example/token"
		for _, subject := range []string{"", "hers"} {
			g, failed := e.ask(t.Context(), subject)
			switch {
			case failed == nil && (!presentable(g.token) || len(g.token) > maxToken || g.lifetime <= 0 || g.lifetime > maxLifetime):
				t.Errorf("%d %s %q gives %q for %v", status, media, body, g.token, g.lifetime)
			case failed != nil && (!said.MatchString(failed.detail) || failed.cause != nil || failed.pause <= 0 || g.token != ""):
				t.Errorf("%d %s %q fails with %q (%v) for %v", status, media, body, failed.detail, failed.cause, failed.pause)
			}
		}
	})
}
