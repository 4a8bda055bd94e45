package api

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/structpb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/apikey"
)

func specOf(t *testing.T, fields map[string]any) *structpb.Struct {
	t.Helper()
	s, err := structpb.NewStruct(fields)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestAKeyIsShownOnceAndKeptAsItsHash(t *testing.T) {
	s := start(t)
	c := s.client(t)
	apply(t, c, "kind: Tenant\nname: acme\nspec: {}\n")
	made, err := c.CreateKey(t.Context(), &outriggerv1.CreateKeyRequest{
		Name: "nightly", Labels: map[string]string{"team": "sky"},
		Spec: specOf(t, map[string]any{"tenant": "acme", "scopes": []any{"read"}, "expires": "2027-01-31T13:00:00+01:00"}),
	})
	if err != nil {
		t.Fatal(err)
	}
	if !apikey.Valid(made.Key) {
		t.Errorf("%q is no key", made.Key)
	}
	got, err := c.Get(t.Context(), &outriggerv1.GetRequest{Kind: "Key", Name: "nightly"})
	if err != nil {
		t.Fatal(err)
	}
	spec := got.Resource.Spec.AsMap()
	if want := apikey.Hash(made.Key, []byte("pepper")); spec["hash"] != want || spec["tenant"] != "acme" || spec["expires"] != "2027-01-31T12:00:00Z" {
		t.Errorf("the Key is %v, want the hash %s, the tenant, and the expiry in UTC", spec, want)
	}
	if made.Resource.Revision != got.Resource.Revision || got.Resource.Labels["team"] != "sky" {
		t.Errorf("made %v, read %v", made.Resource, got.Resource)
	}
	entries, _, err := s.store.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.Contains(string(e.Value), made.Key) {
			t.Errorf("%s holds the key", e.Key)
		}
	}
	apply(t, c, "kind: Key\nname: nightly\nspec: {hash: "+spec["hash"].(string)+", disabled: true}\n") // as any resource
}

func TestAKeyIsMadeOnlyWhereThereIsNone(t *testing.T) {
	one := start(t)
	clients := [2]func() error{}
	keys := [2]string{}
	for i, s := range []*server{one, serve(t, one.store)} {
		c := s.client(t)
		clients[i] = func() error {
			res, err := c.CreateKey(t.Context(), &outriggerv1.CreateKeyRequest{Name: "nightly"})
			keys[i] = res.GetKey()
			return err
		}
	}
	var wg sync.WaitGroup
	var errs [2]error
	for i, create := range clients {
		wg.Go(func() { errs[i] = create() })
	}
	wg.Wait()
	if (errs[0] == nil) == (errs[1] == nil) {
		t.Fatalf("two replicas: %v, %v; want exactly one refused", errs[0], errs[1])
	}
	wantCode(t, "the later one", errors.Join(errs[:]...).(interface{ Unwrap() []error }).Unwrap()[0], connect.CodeAlreadyExists)
	got, err := one.client(t).Get(t.Context(), &outriggerv1.GetRequest{Kind: "Key", Name: "nightly"})
	if err != nil || got.Resource.Spec.Fields["hash"].GetStringValue() != apikey.Hash(keys[0]+keys[1], []byte("pepper")) {
		t.Errorf("%v, %v; want the hash of the key that was given out", got, err)
	}
}

func TestMistakesOfAKeyAreAtTheirPaths(t *testing.T) {
	s := start(t)
	for name, row := range map[string]struct {
		req  *outriggerv1.CreateKeyRequest
		want string
	}{
		"no name":         {&outriggerv1.CreateKeyRequest{}, "name: "},
		"a hash":          {&outriggerv1.CreateKeyRequest{Name: "a", Spec: specOf(t, map[string]any{"hash": "00"})}, "spec.hash: it is made with the key"},
		"unknown field":   {&outriggerv1.CreateKeyRequest{Name: "a", Spec: specOf(t, map[string]any{"tenent": "a"})}, `spec.tenent: unknown field, did you mean "tenant"?`},
		"unknown tenant":  {&outriggerv1.CreateKeyRequest{Name: "a", Spec: specOf(t, map[string]any{"tenant": "acme"})}, `spec.tenant: no Tenant is named "acme"`},
		"not a scope":     {&outriggerv1.CreateKeyRequest{Name: "a", Spec: specOf(t, map[string]any{"scopes": []any{"a b"}})}, "spec.scopes[0]: "},
		"a label's value": {&outriggerv1.CreateKeyRequest{Name: "a", Labels: map[string]string{"a": "b c"}}, "labels.a: "},
	} {
		_, err := s.client(t).CreateKey(t.Context(), row.req)
		wantCode(t, name, err, connect.CodeInvalidArgument)
		if got := violations(t, err); len(got) != 1 || !strings.HasPrefix(got[0], row.want) {
			t.Errorf("%s: %q, want %q", name, got, row.want)
		}
	}
	if list, err := s.client(t).List(t.Context(), &outriggerv1.ListRequest{}); err != nil || len(list.Resources) != 0 {
		t.Errorf("stored %v (%v), want nothing", list, err)
	}
}

// peppered fails to tell the pepper.
type peppered struct{ authority }

func (peppered) Pepper(context.Context) ([]byte, error) { return nil, errors.New("no ring") }

func TestWithoutThePepperNoKeyIsMade(t *testing.T) {
	s := start(t)
	s.api.authority = peppered{}
	_, err := s.client(t).CreateKey(t.Context(), &outriggerv1.CreateKeyRequest{Name: "nightly"})
	wantCode(t, "CreateKey", err, connect.CodeUnavailable)
}

const guarded = upstream + "---" + binding + `---
kind: Policy
name: who
spec:
  identity: {providers: [{name: keys, keys: {}}]}
---
kind: Policy
name: rules
spec: {rules: [{name: read, action: allow, tools: ["get_*"], scopes: [read]}]}
`

func TestExplainAnswersAsTheSidecarsDo(t *testing.T) {
	s := start(t)
	apply(t, s.client(t), guarded)
	if _, err := s.client(t).CreateKey(t.Context(), &outriggerv1.CreateKeyRequest{Name: "nightly", Spec: specOf(t, map[string]any{"scopes": []any{"read"}})}); err != nil {
		t.Fatal(err)
	}
	for name, opts := range map[string][]connect.ClientOption{"connect": nil, "grpc": {connect.WithGRPC()}, "get": {connect.WithHTTPGet()}} {
		c := serve(t, s.store).client(t, opts...) // another replica says the same
		req := &outriggerv1.ExplainRequest{
			Binding: "demo", Tool: "get_x", Arguments: specOf(t, map[string]any{}), Principal: &outriggerv1.ExplainedPrincipal{Key: "nightly"},
		}
		res, err := c.Explain(t.Context(), req)
		if err != nil || !res.Allowed || !res.Listed || res.Policy != "rules" || res.Rule != "read" || len(res.Rules) != 1 || !res.Rules[0].Matched {
			t.Errorf("%s: %v, %v; want it allowed by rules/read", name, res, err)
		}
		req.Principal = nil
		if res, err = c.Explain(t.Context(), req); err != nil || res.Allowed || res.Policy != "who" {
			t.Errorf("%s: without a credential: %v, %v; want it refused by who", name, res, err)
		}
	}
}

func TestExplainRefusesWrongQuestions(t *testing.T) {
	s := start(t)
	c := s.client(t)
	apply(t, c, guarded)
	_, err := c.Explain(t.Context(), &outriggerv1.ExplainRequest{Binding: "none", Tool: "x"})
	wantCode(t, "a binding that does not exist", err, connect.CodeNotFound)
	for want, req := range map[string]*outriggerv1.ExplainRequest{
		"binding: required":           {Tool: "x"},
		"tool: required":              {Binding: "demo", Method: "tools/call"},
		"principal.key: no Key is na": {Binding: "demo", Tool: "x", Principal: &outriggerv1.ExplainedPrincipal{Key: "none"}},
	} {
		_, err := c.Explain(t.Context(), req)
		wantCode(t, want, err, connect.CodeInvalidArgument)
		if got := violations(t, err); len(got) != 1 || !strings.HasPrefix(got[0], want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// Rules that could never work are refused when they are written, each at its place.
func TestRulesThatCannotWorkAreRefusedAtTheirPosition(t *testing.T) {
	c := start(t).client(t)
	_, err := c.Apply(t.Context(), &outriggerv1.ApplyRequest{Resources: parse(t, `
kind: Policy
name: p
spec:
  rules:
    - {action: allow, when: 'principal.sbuject == "jo"'}
    - {action: allow, when: 'method == 1'}
    - {action: deny, when: 'tool.name == "a" && tool.name == "b"'}
    - action: deny
      when: |-
        tool.name == "a" &&
          request.path == "/"
    - {action: allow, tools: [a], tenants: [nobody]}
`)})
	wantCode(t, "Apply", err, connect.CodeInvalidArgument)
	got := violations(t, err)
	want := []string{
		"resources[0].spec.rules[0].when: line 1, column 10: undefined field 'sbuject'",
		"resources[0].spec.rules[1].when: line 1, column 8: found no matching overload",
		"resources[0].spec.rules[2].when: line 1, column 18: can never be true",
		"resources[0].spec.rules[3].when: line 2, column 3: undeclared reference to 'request'",
		`resources[0].spec.rules[4].tenants[0]: no Tenant is named "nobody"`,
	}
	if len(got) != len(want) {
		t.Fatalf("%d mistakes, want %d:\n%s", len(got), len(want), strings.Join(got, "\n"))
	}
	for i := range want {
		if !strings.HasPrefix(got[i], want[i]) {
			t.Errorf("got  %s\nwant %s", got[i], want[i])
		}
	}
}
