package jwt

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// Tokens that are refused for every reason, and an issuer that answers with what it should not: nothing of either is in an
// error, in the log or in a metric.
func TestNothingOfATokenIsInErrorsLogsOrMetrics(t *testing.T) {
	const planted = "pl4nted"
	var log bytes.Buffer
	registry := prometheus.NewRegistry()
	f := newFake(t, public("k", rsaKey))
	i := newIssuers(t, Options{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})), Registerer: registry})
	v := verifierOf(t, i, providerOf(f.issuer))
	marked := func(more map[string]any) string {
		c := map[string]any{"sub": planted, "jti": planted, "name": planted, "scope": planted}
		for name, value := range more {
			c[name] = value
		}
		return payload(f.issuer, time.Now(), c)
	}
	tokens := map[Reason]string{
		Malformed:  raw(`{"alg":"RS256","kid":"k","jku":"https://`+planted+`"}`, marked(nil), rsaKey),
		Algorithm:  string(signed(jose.HS256, planted, []byte(strings.Repeat(planted, 8)), marked(nil))),
		KeyUnknown: string(signed(jose.RS256, planted, rsaKey, marked(nil))),
		Signature:  string(signed(jose.RS256, "k", otherRSA, marked(nil))),
		Issuer:     string(signed(jose.RS256, "k", rsaKey, marked(map[string]any{"iss": "https://" + planted}))),
		Expired:    string(signed(jose.RS256, "k", rsaKey, marked(map[string]any{"exp": 1}))),
		NotYet:     string(signed(jose.RS256, "k", rsaKey, marked(map[string]any{"nbf": time.Now().Add(time.Hour).Unix()}))),
		Audience:   string(signed(jose.RS256, "k", rsaKey, marked(map[string]any{"aud": planted}))),
		Claims:     string(signed(jose.RS256, "k", rsaKey, marked(map[string]any{"groups": map[string]any{planted: 1}}))),
		"":         string(signed(jose.RS256, "k", rsaKey, marked(nil))),
	}
	var said strings.Builder
	for want, text := range tokens {
		_, err := v.Verify(t.Context(), []byte(text))
		if reasonOf(err) != string(want) {
			t.Fatalf("got %q, want %q", reasonOf(err), want)
		}
		fmt.Fprintf(&said, "%v %+v %#v\n", err, err, err)
	}
	f.fails(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, planted, 500) })
	v.source.fetchForTest(t)
	f.fails(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, `{"keys":[],"keys":["%s"]}`, planted) })
	v.source.fetchForTest(t)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(&said, families)
	i.Close(t.Context()) // nothing is logged any more
	said.WriteString(log.String())
	for _, text := range tokens {
		for _, part := range append(strings.Split(text, "."), planted) {
			if len(part) > 4 && strings.Contains(said.String(), part) {
				t.Errorf("%q is in what was said:\n%s", part, said.String())
			}
		}
	}
	if !strings.Contains(log.String(), "WARN") || !strings.Contains(said.String(), "outrigger_jwks_fetches_total") {
		t.Errorf("nothing was said of the fetches that failed:\n%s", said.String())
	}
}

func TestEveryReasonHasAText(t *testing.T) {
	for _, r := range []Reason{Malformed, Algorithm, KeyUnknown, Signature, Issuer, Expired, NotYet, Audience, Claims, Withdrawn, Revoked} {
		err := refuse(r)
		if reasonOf(err) != string(r) || err.Error() == "" {
			t.Errorf("%q: %q with the text %q", r, reasonOf(err), err)
		}
	}
}

func TestMetricsTellFetchesAndTheAgeOfKeys(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	f := newFake(t, public("k", rsaKey))
	i := newIssuers(t, Options{Registerer: registry})
	v := verifierOf(t, i, providerOf(f.issuer))
	never := verifierOf(t, i, providerOf("https://127.0.0.1:1"))
	expect(t, v, token(f.issuer, "k", rsaKey, nil), "")
	expect(t, never, token(never.issuer, "k", rsaKey, nil), "unavailable")
	f.fails(down)
	v.source.fetchForTest(t)
	const want = `
		# HELP outrigger_jwt_remembered_tokens Tokens that were verified and are remembered.
		# TYPE outrigger_jwt_remembered_tokens gauge
		outrigger_jwt_remembered_tokens 1
	`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "outrigger_jwt_remembered_tokens"); err != nil {
		t.Error(err)
	}
	values := make(map[string]float64)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.Metric {
			name := family.GetName()
			for _, l := range m.Label {
				name += " " + l.GetValue()
			}
			values[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	fetches, age := "outrigger_jwks_fetches_total ", "outrigger_jwks_age_seconds "
	if values[fetches+f.issuer+" ok"] != 1 || values[fetches+f.issuer+" failed"] < 1 || values[fetches+never.issuer+" refused_address"] < 1 {
		t.Errorf("fetches: %v, want one that is ok, some that failed, and none of the other issuer's that got anywhere", values)
	}
	if a, ok := values[age+f.issuer]; !ok || a < 0 || a > 60 {
		t.Errorf("the age of keys is %v, want some seconds: %v", a, values)
	}
	if _, ok := values[age+never.issuer]; ok {
		t.Error("keys that were never fetched have an age")
	}
}
