package credential

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// upstreamWith is an Upstream with a credential.
func upstreamWith(c *outriggerv1.Credential) *outriggerv1.Upstream {
	return &outriggerv1.Upstream{Name: "up", Credential: c}
}

func fromEnv(name string) *outriggerv1.Credential {
	return &outriggerv1.Credential{Source: &outriggerv1.Credential_Env{Env: name}}
}

func fromFile(name string) *outriggerv1.Credential {
	return &outriggerv1.Credential{Source: &outriggerv1.Credential_File{File: name}}
}

func fromSecret(name, key string) *outriggerv1.Credential {
	return &outriggerv1.Credential{Source: &outriggerv1.Credential_Secret{Secret: &outriggerv1.SecretReference{Name: name, Key: key}}}
}

func TestAValueIsReadWhereItIsKept(t *testing.T) {
	t.Setenv("OUTRIGGER_CREDENTIAL_X", "planted-env")
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("token", "planted-file\r\n\n")
	write("empty", "\n")
	write("long", strings.Repeat("x", maxValue+1))
	write("lines", "planted\nplanted")
	known := SecretsOf([]*outriggerv1.Secret{{Name: "s", Values: map[string]string{"a": "planted-secret\n", "none": "", "lines": "planted\r\nX: planted"}}})
	all := New(Options{Dir: dir})
	for _, test := range []struct {
		name       string
		credential *outriggerv1.Credential
		want, fail string
	}{
		{"of the environment", fromEnv("OUTRIGGER_CREDENTIAL_X"), "planted-env", ""},
		{"of the environment, not set", fromEnv("OUTRIGGER_CREDENTIAL_Y"), "", "env: OUTRIGGER_CREDENTIAL_Y is not set where this sidecar runs"},
		{"of a file", fromFile("token"), "planted-file", ""},
		{"of an empty file", fromFile("empty"), "", `file: "empty" in --credentials-dir is empty`},
		{"of a long file", fromFile("long"), "", `file: "long" cannot be read in --credentials-dir, or is longer than 65536 bytes`},
		{"of no file", fromFile("none"), "", `file: "none" cannot be read in --credentials-dir, or is longer than 65536 bytes`},
		{"of a file elsewhere", fromFile("../token"), "", "file: must be the bare name of a file in --credentials-dir"},
		{"of a file by its path", fromFile("/etc/hostname"), "", "file: must be the bare name of a file in --credentials-dir"},
		{"of the directory", fromFile("."), "", "file: must be the bare name of a file in --credentials-dir"},
		{"of the one above", fromFile(".."), "", "file: must be the bare name of a file in --credentials-dir"},
		{"of a file of lines", fromFile("lines"), "", "a value that cannot stand in a header"},
		{"of a Secret", fromSecret("s", "a"), "planted-secret", ""},
		{"of no Secret", fromSecret("t", "a"), "", `secret: this sidecar has no Secret "t"`},
		{"of a Secret without it", fromSecret("s", "b"), "", `secret: the Secret "s" has no value "b", or an empty one`},
		{"of a Secret, empty", fromSecret("s", "none"), "", `secret: the Secret "s" has no value "none", or an empty one`},
		{"of a Secret of lines", fromSecret("s", "lines"), "", "a value that cannot stand in a header"},
		{"of nowhere", &outriggerv1.Credential{}, "", "no source that this sidecar knows"},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.credential.Prefix = "Bearer "
			s, err := all.For(upstreamWith(test.credential), known)
			if test.fail != "" {
				if err == nil || err.Error() != "spec.credential: "+test.fail {
					t.Errorf("got %v, want %q", err, test.fail)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			value, fixed := s.Fixed()
			if value != "Bearer "+test.want || !fixed || s.Varies() || s.PerCaller() || s.Header() != "Authorization" {
				t.Errorf("presents %s: %q, want %q", s.Header(), value, "Bearer "+test.want)
			}
			if got, err := s.Value(t.Context(), nil); got != value || err != nil {
				t.Errorf("Value is %q, %v", got, err)
			}
			if got, ok := s.Renew(t.Context(), nil, value); ok {
				t.Errorf("renewed to %q, and there is but one", got)
			}
		})
	}
}

func TestWithoutADirectoryThereAreNoFiles(t *testing.T) {
	_, err := New(Options{}).For(upstreamWith(fromFile("token")), nil)
	if err == nil || err.Error() != "spec.credential: file: this sidecar runs without --credentials-dir" {
		t.Errorf("got %v", err)
	}
}

func TestAClientSecretThatIsNotThereIsSaidWhere(t *testing.T) {
	a := newAuthority(t)
	for _, exchanges := range []bool{false, true} {
		_, err := New(Options{}).For(a.spec(exchanges), Secrets{})
		if err == nil || err.Error() != `spec.credential: clientSecret: secret: this sidecar has no Secret "own"` {
			t.Errorf("got %v", err)
		}
		_, err = New(Options{}).For(a.spec(exchanges, func(e *outriggerv1.TokenEndpoint) { e.CaFile = "/does/not/exist" }), secrets())
		if err == nil || !strings.HasPrefix(err.Error(), "spec.credential: caFile: ") {
			t.Errorf("got %v", err)
		}
	}
}

func TestAResourceLookedAtAloneHasItsSecrets(t *testing.T) {
	all := New(Options{})
	for _, u := range []*outriggerv1.Upstream{upstreamWith(fromSecret("s", "a")), newAuthority(t).spec(true)} {
		if s, err := all.For(u, nil); err != nil || s == nil {
			t.Errorf("%v: %v, %v", u, s, err)
		}
	}
}

func TestNoCredentialPresentsNothing(t *testing.T) {
	for _, all := range []*Sources{nil, New(Options{})} {
		s, err := all.For(upstreamWith(nil), nil)
		if s != nil || err != nil {
			t.Fatalf("%v, %v", s, err)
		}
		value, err := s.Value(t.Context(), upstream.Self)
		if value != "" || err != nil || s.Header() != "" || s.Varies() || s.PerCaller() || s.Digest() != nil {
			t.Errorf("presents %s: %q, %v", s.Header(), value, err)
		}
		s.Forget(nil, "x")
	}
	if _, err := (*Sources)(nil).For(upstreamWith(fromEnv("X")), nil); err == nil {
		t.Error("there is a credential without Sources")
	}
}

func TestACredentialCannotReframeARequest(t *testing.T) {
	for _, header := range []string{
		"content-length", "Transfer-Encoding", "Host", "mcp-session-id", "Mcp-Param-X", "a b", "a:", "Last-Event-Id", "idempotency-key",
	} {
		if _, err := Static(header, "5"); err == nil {
			t.Errorf("took %q for a credential's header", header)
		}
	}
	for _, header := range []string{"X-Api-Key", ""} {
		if _, err := Static(header, "5"); err != nil {
			t.Errorf("%q: %v", header, err)
		}
	}
	if _, err := Static("X-Key", "tell\r\nnobody"); err == nil || strings.Contains(err.Error(), "nobody") {
		t.Errorf("a value of two lines: %v, want an error that does not tell it", err)
	}
}

func TestADigestIsOfWhatIsReadBesideTheResource(t *testing.T) {
	ca := filepath.Join(t.TempDir(), "ca.pem")
	a := newAuthority(t)
	digest := func(u *outriggerv1.Upstream, s Secrets) []byte {
		t.Helper()
		source, err := New(Options{}).For(u, s)
		if err != nil {
			t.Fatal(err)
		}
		return source.Digest()
	}
	other := Secrets{"own": {"secret": "another"}}
	for name, u := range map[string]*outriggerv1.Upstream{"a value": upstreamWith(fromSecret("own", "secret")), "a client's secret": a.spec(true)} {
		if !bytes.Equal(digest(u, secrets()), digest(u, secrets())) || bytes.Equal(digest(u, secrets()), digest(u, other)) {
			t.Errorf("%s: digests do not tell what is the same", name)
		}
	}
	trusting := a.spec(false, func(e *outriggerv1.TokenEndpoint) { e.CaFile = ca })
	var before []byte
	for i := range 2 {
		if err := os.WriteFile(ca, testCertificate(t, i), 0o600); err != nil {
			t.Fatal(err)
		}
		now := digest(trusting, secrets())
		if bytes.Equal(now, before) {
			t.Error("other authorities have the same digest")
		}
		before = now
	}
}
