package jwt

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/go-jose/go-jose/v4"
)

// FuzzParse holds that a stranger's bytes are read without a panic, and only where there is one way to.
func FuzzParse(f *testing.F) {
	f.Add(token("https://idp.example", "k", ecKey, nil))
	f.Add([]byte(raw(`{"alg":"RS256","kid":"k"}`, `{"iss":"x","iss":"y"}`, rsaKey)))
	f.Add([]byte(b64(`{"alg":"none"}`) + "." + b64(`{"a":{"b":[1,{"c":null}]}}`) + ".AA"))
	f.Fuzz(func(t *testing.T, token []byte) {
		u, err := parse(token)
		if err != nil {
			return
		}
		parts := strings.Split(string(token), ".")
		if len(parts) != 3 || b64(string(u.payload)) != parts[1] || b64(string(decode([]byte(parts[0])))) != parts[0] {
			t.Errorf("%q is another token's payload and header too", token)
		}
		if u.algorithm == "" || u.claims == nil || !json.Valid(u.payload) {
			t.Errorf("%q is %+v", token, u)
		}
	})
}

// FuzzForgery holds that a stranger who knows good tokens can make no other of them, wherever he changes them: the
// signatures are of RS256 and EdDSA, of which each message has one.
func FuzzForgery(f *testing.F) {
	ed := must(edKey())
	fake := newFake(f, public("k", rsaKey), public("ed", ed))
	v := verifierOf(f, newIssuers(f, Options{}), providerOf(fake.issuer))
	good := []string{string(token(fake.issuer, "k", rsaKey, nil)), string(signed(jose.EdDSA, "ed", ed, payload(fake.issuer, time.Now(), nil)))}
	f.Add(uint(0), uint(0), uint(0), "")
	f.Add(uint(1), uint(10), uint(3), "AAA")
	f.Add(uint(0), uint(5000), uint(1), "Q") // the last letter
	f.Fuzz(func(t *testing.T, which, at, cut uint, with string) {
		token := good[which%uint(len(good))]
		start := min(at, uint(len(token))-1)
		end := min(start+cut%64, uint(len(token)))
		forged := token[:start] + with + token[end:]
		if _, err := v.Verify(t.Context(), []byte(forged)); (err == nil) != slices.Contains(good, forged) {
			t.Errorf("got %q, for %q in place of %q", reasonOf(err), forged, token)
		}
	})
}

// FuzzPayload holds that whatever an issuer signs is judged without a panic, and that what is taken is one caller.
func FuzzPayload(f *testing.F) {
	ed := must(edKey())
	fake := newFake(f, public("ed", ed))
	v := verifierOf(f, newIssuers(f, Options{}), providerOf(fake.issuer))
	f.Add(payload(fake.issuer, time.Now(), nil))
	f.Add(payload(fake.issuer, time.Now(), map[string]any{"scope": []any{"a", nil}, "nbf": 1.5, "x": nested(20)}))
	f.Add(`{"iss":"` + fake.issuer + `","aud":["` + audience + `"],"exp":4e9,"sub":"\ud800"}`)
	f.Fuzz(func(t *testing.T, text string) {
		got, err := v.Verify(t.Context(), signed(jose.EdDSA, "ed", ed, text))
		if err != nil {
			return
		}
		p := got.Principal
		if p.Issuer != fake.issuer || p.Subject == "" || p.ID != p.Issuer+"|"+p.Subject || !utf8.ValidString(p.ID) ||
			!slices.IsSorted(p.Groups) || !slices.IsSorted(p.Scopes) || p.Expires.IsZero() || p.Claims[0] != '{' {
			t.Errorf("%q is %+v", text, p)
		}
	})
}
