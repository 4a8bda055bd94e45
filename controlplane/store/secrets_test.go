package store

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// secretsOf seals with keys that are each a byte over and over.
func secretsOf(t *testing.T, keys ...byte) *Secrets {
	t.Helper()
	var all [][]byte
	for _, b := range keys {
		all = append(all, bytes.Repeat([]byte{b}, SecretKeySize))
	}
	x, err := NewSecrets(all)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// putSecret stores a Secret with one value.
func putSecret(t *testing.T, s *Store, x *Secrets, name, value string) {
	t.Helper()
	spec, err := structpb.NewStruct(map[string]any{"values": map[string]any{"token": x.Seal(name, "token", value)}})
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := EncodeResource(&outriggerv1.Resource{Kind: "Secret", Name: name, Spec: spec})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Apply(t.Context(), []Write{{Key: ResourceKey("Secret", name), Value: encoded}}); err != nil {
		t.Fatal(err)
	}
}

// readSecret opens the value that putSecret stored.
func readSecret(t *testing.T, s *Store, x *Secrets, name string) (string, error) {
	t.Helper()
	e, ok, err := s.Get(t.Context(), ResourceKey("Secret", name))
	if err != nil || !ok {
		t.Fatalf("Get %s: %v, %v", name, ok, err)
	}
	r, err := x.OpenResource(e)
	if err != nil {
		return "", err
	}
	return SecretValues(r)["token"].GetStringValue(), nil
}

func TestASealedValueOpensOnlyWhereItBelongs(t *testing.T) {
	x := secretsOf(t, 1)
	sealed := x.Seal("idp", "token", "s3cret")
	if again := x.Seal("idp", "token", "s3cret"); again == sealed {
		t.Error("the same value sealed twice looks the same")
	}
	if value, err := x.Open("idp", "token", sealed); value != "s3cret" || err != nil {
		t.Errorf("opened %q, %v", value, err)
	}
	middle := len(sealed) / 2
	other := map[bool]string{true: "B", false: "A"}[sealed[middle] == 'A']
	changed := sealed[:middle] + other + sealed[middle+1:]
	for name, row := range map[string]struct {
		x                 *Secrets
		name, key, sealed string
		want              string
	}{
		"another Secret": {x, "other", "token", sealed, "damaged"},
		"another key":    {x, "idp", "password", sealed, "damaged"},
		"other keys":     {secretsOf(t, 2, 3), "idp", "token", sealed, "another key"},
		"cut":            {x, "idp", "token", sealed[:20], "damaged"},
		"changed":        {x, "idp", "token", changed, "damaged"},
		"not sealed":     {x, "idp", "token", "s3cret", "damaged"},
		"empty":          {x, "idp", "token", "", "damaged"},
	} {
		value, err := row.x.Open(row.name, row.key, row.sealed)
		if value != "" || err == nil || !strings.Contains(err.Error(), row.want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: opened %q, %v; want an error with %q and without the value", name, value, err, row.want)
		}
		if errors.Is(err, ErrOtherKey) != (row.want == "another key") {
			t.Errorf("%s: %v is ErrOtherKey: %v", name, err, errors.Is(err, ErrOtherKey))
		}
	}
}

func TestKeysOfSecretsAreChecked(t *testing.T) {
	for name, keys := range map[string][][]byte{
		"none": nil, "short": {make([]byte, SecretKeySize-1)}, "one short": {make([]byte, SecretKeySize), nil},
		"too many": bytes.Split(bytes.Repeat([]byte("a"), maxSecretKeys+1), nil),
	} {
		if _, err := NewSecrets(keys); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func TestASecretIsNotReadableInTheStore(t *testing.T) {
	forEachBackend(t, func(t *testing.T, s *Store) {
		x := secretsOf(t, 1)
		putSecret(t, s, x, "idp", "s3cret-planted")
		entries, _, err := s.List(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if bytes.Contains(e.Value, []byte("s3cret-planted")) {
				t.Errorf("%s holds the value", e.Key)
			}
		}
		if value, err := readSecret(t, s, x, "idp"); value != "s3cret-planted" || err != nil {
			t.Errorf("opened %q, %v", value, err)
		}
		if _, err := readSecret(t, s, nil, "idp"); err == nil {
			t.Error("opened without a key")
		}
	})
}

func TestAStoreIsOfTheKeysThatClaimedIt(t *testing.T) {
	forEachBackend(t, func(t *testing.T, s *Store) {
		if sealed, err := s.SecretsSealed(t.Context()); sealed || err != nil {
			t.Errorf("a new store is sealed: %v, %v", sealed, err)
		}
		for _, step := range []struct {
			name string
			keys []byte
			lost bool
			ok   bool
		}{
			{"the first", []byte{1}, false, true},
			{"the same, of another replica", []byte{1}, false, true},
			{"another", []byte{2}, false, false},
			{"another beside it", []byte{1, 2}, false, true},
			{"the other before it", []byte{2, 1}, false, true},
			{"the other alone", []byte{2}, false, true},
			{"the first again", []byte{1}, false, false},
			{"the first, the other being lost", []byte{1}, true, true},
		} {
			err := secretsOf(t, step.keys...).Claim(t.Context(), s, step.lost)
			if (err == nil) != step.ok || err != nil && !errors.Is(err, ErrOtherKey) {
				t.Errorf("%s: %v, want it to succeed: %v", step.name, err, step.ok)
			}
		}
		if sealed, err := s.SecretsSealed(t.Context()); !sealed || err != nil {
			t.Errorf("a claimed store is sealed: %v, %v", sealed, err)
		}
	})
}

func TestANewKeySealsWhatTheOldOneDid(t *testing.T) {
	s := open(t, Options{DataDir: t.TempDir()})
	before := secretsOf(t, 1)
	const n = 2*resealedAtOnce + 7
	for i := range n {
		putSecret(t, s, before, fmt.Sprint("s", i), fmt.Sprint("value ", i))
	}
	putSecret(t, s, secretsOf(t, 9), "stray", "lost") // by a key that nobody has
	if err := secretsOf(t, 2, 1).Claim(t.Context(), s, false); err != nil {
		t.Fatal(err)
	}
	_, revision, err := s.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	after := secretsOf(t, 2)
	if err := after.Claim(t.Context(), s, false); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if value, err := readSecret(t, s, after, fmt.Sprint("s", i)); value != fmt.Sprint("value ", i) || err != nil {
			t.Errorf("s%d: %q, %v; want its value by the new key alone", i, value, err)
		}
	}
	if _, err := readSecret(t, s, after, "stray"); !errors.Is(err, ErrOtherKey) {
		t.Errorf("what nobody can open: %v, want it as it was", err)
	}
	if _, now, _ := s.List(t.Context(), ""); now != revision {
		t.Errorf("a second claim wrote: revision %d, then %d", revision, now)
	}
}

func FuzzSealedValue(f *testing.F) {
	x, err := NewSecrets([][]byte{make([]byte, SecretKeySize)})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(x.Seal("a", "b", "value"))
	f.Add("AAAA")
	f.Fuzz(func(t *testing.T, sealed string) {
		value, err := x.Open("a", "b", sealed)
		if err != nil && value != "" {
			t.Errorf("%q opens as %q and fails: %v", sealed, value, err)
		}
		if again, err := x.Open("a", "b", x.Seal("a", "b", sealed)); again != sealed || err != nil {
			t.Errorf("%q is opened as %q, %v", sealed, again, err)
		}
	})
}
