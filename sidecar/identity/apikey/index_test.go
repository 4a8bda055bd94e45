package apikey

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/identity"
)

func TestAKeyIsFoundByItsHashAlone(t *testing.T) {
	a, b, twice := New(), New(), New()
	pepper := []byte("pepper")
	x := NewIndex([]*outriggerv1.Key{
		{Name: "a", Hash: Hash(a, pepper)},
		{Name: "b", Hash: Hash(b, pepper), Disabled: true},
		{Name: "plain", Hash: Hash(a, nil)},
		{Name: "one", Hash: Hash(twice, pepper)},
		{Name: "two", Hash: Hash(twice, pepper), Disabled: true},
		{Name: "three", Hash: Hash(twice, pepper)},
		{Name: "none"}, {Name: "short", Hash: "ab"}, {Name: "long", Hash: strings.Repeat("ab", 33)}, {Name: "nonsense", Hash: strings.Repeat("x", 64)},
	}, pepper)
	for _, tt := range []struct{ what, key, want string }{
		{"a key", a, "a"},
		{"a disabled key: that is the caller's to see", b, "b"},
		{"an unknown key", New(), ""},
		{"a hash in place of its key", Hash(a, pepper), ""},
		{"a key that several Keys describe, of which one is disabled", twice, ""},
		{"nothing", "", ""},
	} {
		if k, ok := x.Lookup([]byte(tt.key)); k.GetName() != tt.want || ok != (tt.want != "") {
			t.Errorf("%s: %q, %v; want %q", tt.what, k.GetName(), ok, tt.want)
		}
	}
	for name, want := range map[string]bool{"a": true, "b": true, "plain": true, "one": false, "two": false, "three": false, "none": false, "long": false} {
		if _, ok := x.Named(name); ok != want {
			t.Errorf("the Key %s: there %v, want %v", name, ok, want)
		}
	}
	if _, ok := NewIndex([]*outriggerv1.Key{{Name: "a", Hash: Hash(a, pepper)}}, nil).Lookup([]byte(a)); ok {
		t.Error("a key is found without the pepper of its hash")
	}
}

func TestAPrincipalIsWhatItsKeySays(t *testing.T) {
	expires := time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC)
	k := &outriggerv1.Key{Name: "ci", Hash: Hash(New(), nil), Tenant: "acme", Scopes: []string{"write", "read", "write"}, Groups: []string{"b", "a"},
		Labels: map[string]string{"team": "blue"}, Expires: timestamppb.New(expires)}
	want := &identity.Principal{ID: "key:ci", Provider: "machines", Key: "ci", KeyHash: k.Hash, Scopes: []string{"read", "write"}, Groups: []string{"a", "b"},
		KeyLabels: k.Labels, Expires: expires}
	if got := Principal(k, "machines"); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if got := Principal(&outriggerv1.Key{Name: "ci"}, ""); !got.Expires.IsZero() {
		t.Errorf("a key without an end expires at %v", got.Expires)
	}
}

// FuzzLookup holds that no text is found but the key.
func FuzzLookup(f *testing.F) {
	key := New()
	x := NewIndex([]*outriggerv1.Key{{Name: "a", Hash: Hash(key, []byte("pepper"))}}, []byte("pepper"))
	f.Add(key)
	f.Add(Prefix)
	f.Add(key[:len(key)-1])
	f.Fuzz(func(t *testing.T, text string) {
		valid := Valid(text)
		if _, ok := x.Lookup([]byte(text)); ok != (text == key) || ok && !valid {
			t.Fatalf("%q: found %v, valid %v", text, ok, valid)
		}
	})
}

func BenchmarkLookup(b *testing.B) {
	var keys []*outriggerv1.Key
	var last string
	for range 10_000 {
		last = New()
		keys = append(keys, &outriggerv1.Key{Name: last, Hash: Hash(last, []byte("pepper"))})
	}
	x, text := NewIndex(keys, []byte("pepper")), []byte(last)
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := x.Lookup(text); !ok {
			b.Fatal("not found")
		}
	}
}
