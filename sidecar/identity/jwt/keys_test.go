package jwt

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// asJSON is a JWKS of one key, with members in place of its own.
func asJSON(k jose.JSONWebKey, change map[string]any) string {
	var members map[string]any
	if err := json.Unmarshal(must(k.MarshalJSON()), &members); err != nil {
		panic(err)
	}
	for name, value := range change {
		members[name] = value
	}
	return `{"keys":[` + string(must(json.Marshal(members))) + `]}`
}

func TestKeysThatCannotBeUsedArePassedOver(t *testing.T) {
	small := smallKey()
	k := public("k", rsaKey)
	for name, test := range map[string]struct {
		document string
		usable   bool
	}{
		"as it should be":          {asJSON(k, nil), true},
		"without use":              {asJSON(k, map[string]any{"use": ""}), true},
		"that verifies":            {asJSON(k, map[string]any{"key_ops": []string{"verify"}}), true},
		"that encrypts":            {asJSON(k, map[string]any{"use": "enc"}), false},
		"that signs":               {asJSON(k, map[string]any{"key_ops": []string{"sign"}}), false},
		"that does nothing":        {asJSON(k, map[string]any{"key_ops": []string{}}), false},
		"private":                  {asJSON(jose.JSONWebKey{Key: rsaKey, KeyID: "k"}, nil), false},
		"private, of a curve":      {asJSON(jose.JSONWebKey{Key: ecKey, KeyID: "k"}, nil), false},
		"a shared secret":          {asJSON(jose.JSONWebKey{Key: make([]byte, 64), KeyID: "k"}, nil), false},
		"1024 bits":                {asJSON(public("k", small), nil), false},
		"of an unknown type":       {asJSON(k, map[string]any{"kty": "XYZ"}), false},
		"of an unknown curve":      {asJSON(public("k", ecKey), map[string]any{"crv": "secp256k1"}), false},
		"not on its curve":         {asJSON(public("k", ecKey), map[string]any{"x": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}), false},
		"with a name without end":  {asJSON(k, map[string]any{"kid": strings.Repeat("k", maxKeyID+1)}), false},
		"with a numeric name":      {asJSON(k, map[string]any{"kid": 1}), false},
		"that is no object":        {`{"keys":[1]}`, false},
		"that is null":             {`{"keys":[null]}`, false},
		"with a member twice":      {`{"keys":[{"kty":"OKP","kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`, false},
		"of Edwards' curve":        {`{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`, true},
		"with a public exponent 1": {asJSON(k, map[string]any{"e": "AQ"}), false},
	} {
		keys, unusable, err := readKeys([]byte(test.document))
		if err != nil || len(keys)+unusable != 1 || (len(keys) == 1) != test.usable {
			t.Errorf("a key %s: %d usable, %d not, %v; want usable %v", name, len(keys), unusable, err, test.usable)
		}
	}
}

// smallKey is an RSA key of 1024 bits, which Go does not make any more.
func smallKey() signer {
	for {
		p, q := must(rand.Prime(rand.Reader, 512)), must(rand.Prime(rand.Reader, 512))
		k := &rsa.PrivateKey{PublicKey: rsa.PublicKey{E: 65537}}
		k.N = p.Mul(p, q)
		if k.N.BitLen() == 1024 {
			return k
		}
	}
}

func TestAKeysTypeAndAlgorithmDecideWhatItVerifies(t *testing.T) {
	all := []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "HS256", "none"}
	only := public("k", rsaKey)
	only.Algorithm = "PS256"
	for _, test := range []struct {
		key  jose.JSONWebKey
		want string
	}{
		{public("k", rsaKey), "RS256 RS384 RS512 PS256 PS384 PS512"},
		{only, "PS256"},
		{public("k", ecKey), "ES256"},
		{public("k", must(ecdsaKey(384))), "ES384"},
		{public("k", must(ecdsaKey(521))), "ES512"},
		{public("k", must(edKey())), "EdDSA"},
	} {
		keys, _, err := readKeys([]byte(asJSON(test.key, nil)))
		if err != nil || len(keys) != 1 {
			t.Fatal(keys, err)
		}
		var got []string
		for _, a := range all {
			if keys[0].suits(a) {
				got = append(got, a)
			}
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%T, %q: verifies %v, want %s", test.key.Key, test.key.Algorithm, got, test.want)
		}
	}
}

func TestWhichKeyATokenMayBeSignedWith(t *testing.T) {
	two := keysOf(t, public("a", rsaKey), public("b", otherRSA), public("c", ecKey))
	twins := keysOf(t, public("a", rsaKey), public("a", otherRSA), public("a", ecKey))
	nameless := keysOf(t, public("", rsaKey), public("", ecKey))
	for _, test := range []struct {
		name           string
		set            *keySet
		kid, algorithm string
		found          int
		want           string
	}{
		{"by kid", two, "a", "RS256", 1, ""},
		{"by kid, of another type", two, "a", "ES256", 0, "algorithm"},
		{"by a kid that nobody has", two, "x", "RS256", 0, "key_unknown"},
		{"without kid, the only one that suits", two, "", "ES256", 1, ""},
		{"without kid, one of two that suit", two, "", "RS256", 0, "key_unknown"},
		{"without kid, none that suits", two, "", "EdDSA", 0, "key_unknown"},
		{"by a kid that two have", twins, "a", "RS256", 2, ""},
		{"by a kid that two of other types have", twins, "a", "ES256", 1, ""},
		{"by kid, where keys have none", nameless, "a", "RS256", 0, "key_unknown"},
		{"without kid, where keys have none", nameless, "", "RS256", 1, ""},
	} {
		found, err := test.set.choose(test.kid, test.algorithm)
		if len(found) != test.found || reasonOf(err) != test.want {
			t.Errorf("%s: %d keys and %q, want %d and %q", test.name, len(found), reasonOf(err), test.found, test.want)
		}
	}
}

func keysOf(t testing.TB, all ...jose.JSONWebKey) *keySet {
	t.Helper()
	keys, _, err := readKeys(must(json.Marshal(jose.JSONWebKeySet{Keys: all})))
	if err != nil || len(keys) != len(all) {
		t.Fatal(keys, err)
	}
	return (*keySet)(nil).succeed(keys, time.Now())
}

func FuzzKeys(f *testing.F) {
	f.Add([]byte(asJSON(public("k", rsaKey), nil)))
	f.Add([]byte(asJSON(public("k", ecKey), map[string]any{"alg": "ES256", "x5t": "AAAA"})))
	f.Add([]byte(`{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"},{}]}`))
	f.Fuzz(func(t *testing.T, document []byte) {
		keys, _, err := readKeys(document)
		if err != nil && keys != nil {
			t.Errorf("%d keys beside the error %v", len(keys), err)
		}
		for _, k := range keys {
			if k.suits("HS256") || k.suits("none") || k.public == nil || k.print == "" {
				t.Errorf("a key that cannot be meant: %+v of %q", k, document)
			}
		}
	})
}
