package jwt

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"google.golang.org/protobuf/types/known/durationpb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

func TestAGoodTokenIsItsCaller(t *testing.T) {
	f := newFake(t, public("k", rsaKey))
	v := verifierOf(t, newIssuers(t, Options{}), providerOf(f.issuer, func(p *outriggerv1.JWTProvider) {
		p.Claims = &outriggerv1.ClaimPaths{Tenant: `https://acme\.example/org`, Groups: "realm.roles"}
	}))
	now := time.Now().Truncate(time.Second)
	bytes := token(f.issuer, "k", rsaKey, map[string]any{
		"https://acme.example/org": "acme", "realm": map[string]any{"roles": "ops dev ops", "name.x": "main"}, "n": 7,
		"iat": now.Unix(), "exp": float64(now.Add(time.Minute).Unix()) + 0.5, `odd\`: "passed over",
	})
	got := expect(t, v, bytes, "")
	p := *got.Principal
	if string(p.Claims[:1]) != "{" || p.Token != string(bytes) {
		t.Errorf("claims %s and token %s, want the payload and the token", p.Claims, p.Token)
	}
	p.Claims, p.Token = nil, ""
	want := p
	want.ID, want.Provider, want.Issuer, want.Subject = f.issuer+"|jo", "idp", f.issuer, "jo"
	want.Groups, want.Scopes, want.JTI = []string{"dev", "ops"}, []string{"read", "write"}, "t-1"
	want.IssuedAt, want.Expires = now, now.Add(time.Minute+500*time.Millisecond+30*time.Second)
	want.ClaimText = map[string]string{
		"iss": f.issuer, "aud": audience, "sub": "jo", "jti": "t-1", "scope": "write read",
		`https://acme\.example/org`: "acme", "realm.roles": "ops dev ops", `realm.name\.x`: "main",
	}
	if !reflect.DeepEqual(p, want) || got.TenantClaim != "acme" {
		t.Errorf("got  %+v and tenant %q\nwant %+v and acme", p, got.TenantClaim, want)
	}
	if again := expect(t, v, bytes, ""); again != got {
		t.Error("the same token is another one when it comes again")
	}
}

func TestEveryAlgorithmThatMayBeNamedVerifies(t *testing.T) {
	keys := map[string]any{"RS": rsaKey, "PS": rsaKey, "ES256": ecKey, "ES384": must(ecdsaKey(384)), "ES512": must(ecdsaKey(521)), "Ed": must(edKey())}
	f := newFake(t)
	for name, k := range keys {
		f.keys = append(f.keys, public(name, k.(signer)))
	}
	v := verifierOf(t, newIssuers(t, Options{}), providerOf(f.issuer))
	for _, algorithm := range v.algorithms {
		kid := string(algorithm)
		if !strings.HasPrefix(kid, "ES") {
			kid = kid[:2]
		}
		expect(t, v, signed(algorithm, kid, keys[kid], payload(f.issuer, time.Now(), nil)), "")
	}
	if len(v.algorithms) != 10 {
		t.Errorf("%d algorithms, want all ten of the proto's comment", len(v.algorithms))
	}
}

func TestWhatATokenSaysIsHeldTo(t *testing.T) {
	f := newFake(t, public("k", rsaKey))
	start := time.Unix(1_800_000_000, 0)
	v := verifierOf(t, newIssuers(t, Options{Now: func() time.Time { return start }}), providerOf(f.issuer, func(p *outriggerv1.JWTProvider) {
		p.Claims = &outriggerv1.ClaimPaths{Tenant: "org"}
	}))
	at := func(d time.Duration) int64 { return start.Add(d).Unix() }
	for name, test := range map[string]struct {
		change map[string]any
		want   Reason
	}{
		"as it should be":                 {nil, ""},
		"expired within the skew":         {map[string]any{"exp": at(-29 * time.Second)}, ""},
		"expired":                         {map[string]any{"exp": at(-30 * time.Second)}, Expired},
		"expired long ago":                {map[string]any{"exp": 1}, Expired},
		"no expiry":                       {map[string]any{"exp": nil}, Claims},
		"expiry as a text":                {map[string]any{"exp": "4000000000"}, Claims},
		"expiry that no clock shows":      {map[string]any{"exp": 1e300}, Claims},
		"negative expiry":                 {map[string]any{"exp": -1}, Claims},
		"begins within the skew":          {map[string]any{"nbf": at(30 * time.Second)}, ""},
		"begins later":                    {map[string]any{"nbf": at(31 * time.Second)}, NotYet},
		"begins at a text":                {map[string]any{"nbf": "0"}, Claims},
		"issued within the skew":          {map[string]any{"iat": at(30 * time.Second)}, ""},
		"issued in the future":            {map[string]any{"iat": at(31 * time.Second)}, NotYet},
		"without iat":                     {map[string]any{"iat": nil}, ""},
		"another issuer":                  {map[string]any{"iss": "https://evil.example"}, Issuer},
		"the issuer with a slash":         {map[string]any{"iss": f.issuer + "/"}, Issuer},
		"no issuer":                       {map[string]any{"iss": nil}, Issuer},
		"a list of issuers":               {map[string]any{"iss": []string{f.issuer}}, Issuer},
		"another audience":                {map[string]any{"aud": "https://mcp.example/other"}, Audience},
		"an audience that begins so":      {map[string]any{"aud": audience + "/x"}, Audience},
		"an audience in capitals":         {map[string]any{"aud": strings.ToUpper(audience)}, Audience},
		"no audience":                     {map[string]any{"aud": nil}, Audience},
		"an empty list of audiences":      {map[string]any{"aud": []string{}}, Audience},
		"one of several audiences":        {map[string]any{"aud": []string{"x", audience}}, ""},
		"an audience inside an object":    {map[string]any{"aud": map[string]string{"a": audience}}, Audience},
		"no subject":                      {map[string]any{"sub": nil}, Claims},
		"an empty subject":                {map[string]any{"sub": ""}, Claims},
		"a numeric subject":               {map[string]any{"sub": 7}, Claims},
		"a subject with a line break":     {map[string]any{"sub": "jo\nroot"}, Claims},
		"a subject without end":           {map[string]any{"sub": strings.Repeat("x", maxSubject+1)}, Claims},
		"groups in one text":              {map[string]any{"groups": "a b"}, ""},
		"groups that are numbers":         {map[string]any{"groups": []any{"a", 1}}, Claims},
		"groups in an object":             {map[string]any{"groups": map[string]any{"a": true}}, Claims},
		"more groups than anybody has":    {map[string]any{"groups": strings.Repeat("a ", 1), "scope": many(maxListed + 1)}, Claims},
		"scopes in scp":                   {map[string]any{"scope": nil, "scp": []string{"read"}}, ""},
		"scopes that are numbers":         {map[string]any{"scope": 1}, Claims},
		"a tenant that is no text":        {map[string]any{"org": 1}, Claims},
		"a token id that is no text":      {map[string]any{"jti": 1}, Claims},
		"objects as deep as is read":      {map[string]any{"x": nested(maxDepth - 1)}, ""},
		"objects deeper than anybody has": {map[string]any{"x": nested(maxDepth + 1)}, Malformed},
	} {
		t.Run(name, func(t *testing.T) {
			expect(t, v, signed(jose.RS256, "k", rsaKey, payload(f.issuer, start, test.change)), string(test.want))
		})
	}
}

// many is that many different words.
func many(n int) string {
	words := make([]string, n)
	for i := range words {
		words[i] = fmt.Sprint(i)
	}
	return strings.Join(words, " ")
}

func nested(depth int) any {
	var v any = "x"
	for range depth {
		v = map[string]any{"a": v}
	}
	return v
}

// Each of these has a good signature of the issuer's key over exactly what it holds, unless its name says otherwise.
func TestWhatCouldBeReadInTwoWaysIsRefused(t *testing.T) {
	f := newFake(t, public("k", rsaKey), public("ec", ecKey))
	v := verifierOf(t, newIssuers(t, Options{}), providerOf(f.issuer))
	const header = `{"alg":"RS256","kid":"k","typ":"at+jwt"}`
	good := payload(f.issuer, time.Now(), nil)
	inHeader := func(more string) string { return raw(`{"alg":"RS256","kid":"k",`+more+`}`, good, rsaKey) }
	inPayload := func(more string) string { return raw(header, strings.TrimSuffix(good, "}")+","+more+"}", rsaKey) }
	parts := strings.Split(raw(header, good, rsaKey), ".")
	for name, test := range map[string]struct {
		token string
		want  Reason
	}{
		"as it should be":                   {raw(header, good, rsaKey), ""},
		"white space around the payload":    {raw(header, " "+good+"\n", rsaKey), ""},
		"a key's thumbprint":                {inHeader(`"x5t":"abc"`), ""},
		"typ in capitals":                   {inHeader(`"typ":"JWT"`), ""},
		"typ in full":                       {inHeader(`"typ":"application/at+jwt"`), ""},
		"typ of a logout":                   {inHeader(`"typ":"logout+jwt"`), Malformed},
		"typ of a number":                   {inHeader(`"typ":1`), Malformed},
		"the issuer twice":                  {inPayload(`"iss":"` + f.issuer + `"`), Malformed},
		"the subject twice":                 {inPayload(`"sub":"root"`), Malformed},
		"the subject twice, with an escape": {inPayload(`"\u0073ub":"root"`), Malformed},
		"a name twice inside":               {inPayload(`"realm":{"a":1,"a":2}`), Malformed},
		"a name twice inside a list":        {inPayload(`"realm":[{"a":1,"a":2}]`), Malformed},
		"the same name in capitals":         {inPayload(`"SUB":"root"`), ""},
		"a header twice":                    {inHeader(`"kid":"k"`), Malformed},
		"alg twice":                         {inHeader(`"alg":"none"`), Malformed},
		"alg in another case":               {raw(`{"alg":"rs256","kid":"k"}`, good, rsaKey), Algorithm},
		"ALG beside alg":                    {inHeader(`"ALG":"none"`), ""},
		"no alg":                            {raw(`{"kid":"k"}`, good, rsaKey), Malformed},
		"keys by jku":                       {inHeader(`"jku":"https://evil.example/keys"`), Malformed},
		"keys by x5u":                       {inHeader(`"x5u":"https://evil.example/keys"`), Malformed},
		"a key by jwk":                      {inHeader(`"jwk":{"kty":"oct","k":"AAAA"}`), Malformed},
		"certificates by x5c":               {inHeader(`"x5c":["AAAA"]`), Malformed},
		"a critical extension":              {inHeader(`"crit":["exp"],"exp":1`), Malformed},
		"no critical extension":             {inHeader(`"crit":[]`), Malformed},
		"a payload that is not encoded":     {inHeader(`"b64":true`), Malformed},
		"a nested token":                    {inHeader(`"cty":"JWT"`), Malformed},
		"packed":                            {inHeader(`"zip":"DEF"`), Malformed},
		"kid a number":                      {raw(`{"alg":"RS256","kid":1}`, good, rsaKey), Malformed},
		"kid null":                          {raw(`{"alg":"RS256","kid":null}`, good, rsaKey), Malformed},
		"kid empty":                         {raw(`{"alg":"RS256","kid":""}`, good, rsaKey), Malformed},
		"kid a path":                        {raw(`{"alg":"RS256","kid":"../../dev/null"}`, good, rsaKey), KeyUnknown},
		"kid in another case":               {raw(`{"alg":"RS256","kid":"K"}`, good, rsaKey), KeyUnknown},
		"kid without end":                   {raw(`{"alg":"RS256","kid":"`+strings.Repeat("k", maxKeyID+1)+`"}`, good, rsaKey), Malformed},
		"kid of a key of another type":      {raw(`{"alg":"RS256","kid":"ec"}`, good, rsaKey), Algorithm},
		"no kid, one key that suits":        {raw(`{"alg":"RS256"}`, good, rsaKey), ""},
		"signed by somebody else":           {raw(header, good, otherRSA), Signature},
		"another algorithm than signed":     {raw(`{"alg":"RS512","kid":"k"}`, good, rsaKey), Signature},
		"a header that is a list":           {raw(`["alg","RS256"]`, good, rsaKey), Malformed},
		"a payload that is a text":          {raw(header, `"x"`, rsaKey), Malformed},
		"a payload that is null":            {raw(header, `null`, rsaKey), Malformed},
		"a payload cut short":               {raw(header, good[:len(good)-1], rsaKey), Malformed},
		"something after the payload":       {raw(header, good+"{}", rsaKey), Malformed},
		"bytes that are not UTF-8":          {inPayload("\"x\":\"\xff\""), Malformed},
		"a number that no computer holds":   {inPayload(`"x":1e999`), Malformed},
		"larger than any token":             {inPayload(`"x":"` + strings.Repeat("x", maxToken) + `"`), Malformed},
		"nothing":                           {"", Malformed},
		"two parts":                         {parts[0] + "." + parts[1], Malformed},
		"four parts":                        {strings.Join(parts, ".") + ".", Malformed},
		"no signature":                      {parts[0] + "." + parts[1] + ".", Malformed},
		"no payload":                        {parts[0] + ".." + parts[2], Malformed},
		"padding":                           {parts[0] + "." + parts[1] + "." + parts[2] + "=", Malformed},
		"a line break inside":               {parts[0] + ".\n" + parts[1] + "." + parts[2], Malformed},
		"white space around":                {" " + strings.Join(parts, "."), Malformed},
		"unused bits of the last letter":    {strings.Join(parts[:2], ".") + "." + parts[2][:len(parts[2])-1] + next(parts[2]), Malformed},
		"encrypted":                         {strings.Join(append(parts, "x", "y"), "."), Malformed},
	} {
		t.Run(name, func(t *testing.T) { expect(t, v, []byte(test.token), string(test.want)) })
	}
}

// next is a last letter of base64url that a forgiving decoder takes for the one that text has.
func next(text string) string {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	return letters[strings.IndexByte(letters, text[len(text)-1])+1:][:1]
}

func TestNoTokenIsTakenWithoutAnAudience(t *testing.T) {
	i := newIssuers(t, Options{})
	if _, err := i.Verifier(Spec{Name: "idp", Provider: providerOf("https://idp.example")}); err == nil {
		t.Error("a Verifier without audiences was made")
	}
}

func TestTheProvidersAudiencesAreTakenInPlaceOfTheBindings(t *testing.T) {
	f := newFake(t, public("k", rsaKey))
	v := verifierOf(t, newIssuers(t, Options{}), providerOf(f.issuer, func(p *outriggerv1.JWTProvider) { p.Audiences = []string{"weather"} }))
	expect(t, v, token(f.issuer, "k", rsaKey, map[string]any{"aud": "weather"}), "")
	expect(t, v, token(f.issuer, "k", rsaKey, nil), "audience")
}

func TestOnlyAlgorithmsThatAreNamedAreTaken(t *testing.T) {
	f := newFake(t, public("k", rsaKey), public("ec", ecKey))
	i := newIssuers(t, Options{})
	v := verifierOf(t, i, providerOf(f.issuer, func(p *outriggerv1.JWTProvider) { p.Algorithms = []string{"ES256"} }))
	expect(t, v, token(f.issuer, "ec", ecKey, nil), "")
	expect(t, v, token(f.issuer, "k", rsaKey, nil), "algorithm")
	for _, a := range []string{"none", "HS256", "RS1", ""} {
		p := providerOf(f.issuer)
		p.Algorithms = []string{a}
		if _, err := i.Verifier(Spec{Name: "idp", Provider: p, Audiences: []string{audience}}); err == nil {
			t.Errorf("a Verifier for algorithm %q was made", a)
		}
	}
}

func TestTheIssuerThatATokenNamesDecidesWhoJudgesIt(t *testing.T) {
	one, two := newFake(t, public("k", rsaKey)), newFake(t, public("k", otherRSA))
	i := newIssuers(t, Options{})
	all := Verifiers{verifierOf(t, i, providerOf(one.issuer)), verifierOf(t, i, providerOf(two.issuer))}
	for name, test := range map[string]struct {
		token []byte
		want  string
	}{
		"of one":                      {token(one.issuer, "k", rsaKey, nil), ""},
		"of the other":                {token(two.issuer, "k", otherRSA, nil), ""},
		"of one, by the other's key":  {token(one.issuer, "k", otherRSA, nil), "signature"},
		"of the other, by one's key":  {token(two.issuer, "k", rsaKey, nil), "signature"},
		"of somebody, by the one key": {token("https://evil.example", "k", rsaKey, nil), "issuer"},
	} {
		for range 2 { // the second time, what was verified is remembered
			got, err := all.Verify(t.Context(), test.token)
			if reasonOf(err) != test.want {
				t.Errorf("%s: got %q, want %q", name, reasonOf(err), test.want)
			}
			if err == nil && !strings.Contains(readable(test.token), `"iss":"`+got.Principal.Issuer+`"`) {
				t.Errorf("%s: the issuer is %q, and the token says %s", name, got.Principal.Issuer, readable(test.token))
			}
		}
	}
}

func TestAnEqualSpecIsTheSameVerifierAndAnotherIsNot(t *testing.T) {
	f := newFake(t, public("k", rsaKey))
	i := newIssuers(t, Options{})
	v := verifierOf(t, i, providerOf(f.issuer))
	if verifierOf(t, i, providerOf(f.issuer)) != v {
		t.Error("an equal Spec made another Verifier")
	}
	known := token(f.issuer, "k", rsaKey, nil)
	expect(t, v, known, "")
	stricter := verifierOf(t, i, providerOf(f.issuer, func(p *outriggerv1.JWTProvider) { p.Audiences = []string{"other"} }))
	if stricter.source != v.source {
		t.Error("the keys of one issuer are kept twice")
	}
	expect(t, stricter, known, "audience")
	for name, change := range map[string]func(*outriggerv1.JWTProvider){
		"skew":       func(p *outriggerv1.JWTProvider) { p.ClockSkew = durationpb.New(time.Second) },
		"claims":     func(p *outriggerv1.JWTProvider) { p.Claims = &outriggerv1.ClaimPaths{Subject: "email"} },
		"algorithms": func(p *outriggerv1.JWTProvider) { p.Algorithms = []string{"ES256"} },
	} {
		if verifierOf(t, i, providerOf(f.issuer, change)) == v {
			t.Errorf("another %s is the same Verifier", name)
		}
	}
}

func TestAKnownTokenEndsWithItsExpiry(t *testing.T) {
	f := newFake(t, public("k", rsaKey))
	var mu sync.Mutex
	now := time.Now()
	v := verifierOf(t, newIssuers(t, Options{Now: func() time.Time { mu.Lock(); defer mu.Unlock(); return now }}), providerOf(f.issuer))
	bytes := token(f.issuer, "k", rsaKey, nil)
	first := expect(t, v, bytes, "")
	mu.Lock()
	now = first.Principal.Expires.Add(-time.Nanosecond)
	mu.Unlock()
	expect(t, v, bytes, "")
	mu.Lock()
	now = first.Principal.Expires
	mu.Unlock()
	expect(t, v, bytes, "expired")
	if got := reasonOf(first.Valid(now)); got != "expired" {
		t.Errorf("Valid: %q, want expired", got)
	}
}

func TestACallerWhoLeavesIsNotHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, i := newBubble(t, Options{}, public("k", rsaKey))
		f.fails(hangs)
		v := verifierOf(t, i, providerOf(f.issuer))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		_, err := v.Verify(ctx, token(f.issuer, "k", rsaKey, nil))
		if took := time.Since(began); err != context.DeadlineExceeded || took != time.Second {
			t.Errorf("got %v after %v, want the context's error after a second", err, took)
		}
	})
}

func TestAKnownTokenDoesNotAllocate(t *testing.T) {
	f, other := newFake(t, public("k", rsaKey)), newFake(t)
	i := newIssuers(t, Options{})
	all := Verifiers{verifierOf(t, i, providerOf(other.issuer)), verifierOf(t, i, providerOf(f.issuer))}
	bytes, ctx := token(f.issuer, "k", rsaKey, nil), context.Background()
	expect(t, all[1], bytes, "")
	if n := testing.AllocsPerRun(1000, func() {
		if _, err := all.Verify(ctx, bytes); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations for a known token, want 0", n)
	}
}
