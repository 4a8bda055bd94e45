package api

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/controlplane/store"
	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

const (
	planted = "s3cret-planted-4711"
	idp     = "kind: Secret\nname: idp\nspec: {values: {client: " + planted + ", token: " + planted + "-2}}\n"
)

func secretsOf(t *testing.T, key byte) *store.Secrets {
	t.Helper()
	x, err := store.NewSecrets([][]byte{bytes.Repeat([]byte{key}, store.SecretKeySize)})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// startSealed is a server that can seal Secrets.
func startSealed(t *testing.T) *server {
	t.Helper()
	s := start(t)
	s.api.options.Secrets = secretsOf(t, 1)
	return s
}

// opened are the values of a stored Secret.
func (s *server) opened(t *testing.T, name string) map[string]string {
	t.Helper()
	e, ok, err := s.store.Get(t.Context(), store.ResourceKey("Secret", name))
	if err != nil || !ok {
		t.Fatalf("Secret/%s: %v, %v", name, ok, err)
	}
	r, err := s.api.options.Secrets.OpenResource(e)
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]string{}
	for key, v := range store.SecretValues(r) {
		values[key] = v.GetStringValue()
	}
	return values
}

// wantHidden fails if a message tells a planted value, or what it was sealed to, or has not the keys with empty values.
func wantHidden(t *testing.T, what string, m proto.Message, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	text, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	compact := strings.ReplaceAll(string(text), " ", "")
	if strings.Contains(compact, planted) || !strings.Contains(compact, `"client":""`) || !strings.Contains(compact, `"token":""`) {
		t.Errorf("%s: %s; want the keys with empty values", what, text)
	}
}

func TestNobodyReadsTheValuesOfASecret(t *testing.T) {
	s := startSealed(t)
	c := s.client(t)
	dry, err := c.Apply(t.Context(), &outriggerv1.ApplyRequest{Resources: parse(t, idp), DryRun: true})
	wantHidden(t, "dry run", dry, err)
	applied, err := c.Apply(t.Context(), &outriggerv1.ApplyRequest{Resources: parse(t, idp)})
	wantHidden(t, "Apply", applied, err)
	got, err := c.Get(t.Context(), &outriggerv1.GetRequest{Kind: "Secret", Name: "idp"})
	wantHidden(t, "Get", got, err)
	list, err := c.List(t.Context(), &outriggerv1.ListRequest{})
	wantHidden(t, "List", list, err)
	for _, from := range []int64{0, 1} { // what there is, and what changed
		stream, err := c.Watch(t.Context(), &outriggerv1.WatchRequest{FromRevision: from})
		if err != nil {
			t.Fatal(err)
		}
		timer := time.AfterFunc(10*time.Second, func() { stream.Close() })
		if !stream.Receive() {
			t.Fatalf("Watch from %d: %v", from, stream.Err())
		}
		wantHidden(t, fmt.Sprint("Watch from ", from), stream.Msg(), nil)
		timer.Stop()
		stream.Close()
	}
	entries, _, err := s.store.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if bytes.Contains(e.Value, []byte(planted)) {
			t.Errorf("%s holds the value in the clear", e.Key)
		}
	}
	if got := s.opened(t, "idp"); got["client"] != planted || got["token"] != planted+"-2" {
		t.Errorf("stored %v, want what was given", got)
	}
}

func TestWhatWasReadOfASecretCanBeAppliedAgain(t *testing.T) {
	s := startSealed(t)
	c := s.client(t)
	first := apply(t, c, idp)[0].Revision
	got, err := c.Get(t.Context(), &outriggerv1.GetRequest{Kind: "Secret", Name: "idp"})
	if err != nil {
		t.Fatal(err)
	}
	again := func(r *outriggerv1.Resource) int64 {
		t.Helper()
		res, err := c.Apply(t.Context(), &outriggerv1.ApplyRequest{Resources: []*outriggerv1.Resource{r}})
		if err != nil {
			t.Fatal(err)
		}
		return res.Resources[0].Revision
	}
	if revision := again(got.Resource); revision != first {
		t.Errorf("applying what was read: revision %d, want %d as before", revision, first)
	}
	if revision := again(parse(t, idp)[0]); revision != first {
		t.Errorf("applying the values that are stored: revision %d, want %d as before", revision, first)
	}
	for _, row := range []struct{ values, client, token string }{
		{`{client: "", token: new}`, planted, "new"},
		{`{client: other, token: ""}`, "other", "new"},
		{`{client: ""}`, "other", ""}, // a key that is left out is gone
	} {
		if again(parse(t, "kind: Secret\nname: idp\nspec: {values: "+row.values+"}\n")[0]) == first {
			t.Errorf("%s: nothing was written", row.values)
		}
		if got := s.opened(t, "idp"); got["client"] != row.client || got["token"] != row.token {
			t.Errorf("%s: stored %v, want %s and %q", row.values, got, row.client, row.token)
		}
	}
}

func TestAnEmptyValueNeedsOneThatIsStored(t *testing.T) {
	s := startSealed(t)
	c := s.client(t)
	apply(t, c, idp)
	for name, row := range map[string]struct{ text, want string }{
		"a new Secret":  {"kind: Secret\nname: new\nspec: {values: {client: \"\"}}\n", "resources[0].spec.values.client: empty"},
		"a new key":     {upstream + "---\nkind: Secret\nname: idp\nspec: {values: {client: \"\", more: \"\"}}\n", "resources[1].spec.values.more: empty"},
		"another's key": {"kind: Secret\nname: idq\nspec: {values: {token: \"\"}}\n", "resources[0].spec.values.token: empty"},
	} {
		_, err := c.Apply(t.Context(), &outriggerv1.ApplyRequest{Resources: parse(t, row.text)})
		wantCode(t, name, err, connect.CodeInvalidArgument)
		if got := violations(t, err); len(got) != 1 || !strings.HasPrefix(got[0], row.want) {
			t.Errorf("%s: %q, want %q", name, got, row.want)
		}
	}
	s.api.options.Secrets = secretsOf(t, 2) // the key is lost
	_, err := c.Apply(t.Context(), &outriggerv1.ApplyRequest{Resources: parse(t, strings.Replace(idp, planted+"-2", `""`, 1))})
	wantCode(t, "a value that cannot be opened", err, connect.CodeInvalidArgument)
	if got := violations(t, err); len(got) != 1 || !strings.Contains(got[0], "spec.values.token: empty") || !strings.Contains(got[0], "cannot be opened") {
		t.Errorf("%q, want that the value is lost", got)
	}
	apply(t, c, idp)
	if got := s.opened(t, "idp"); got["token"] != planted+"-2" {
		t.Errorf("given again: %v", got)
	}
}

func TestWithoutAKeySecretsAreRefused(t *testing.T) {
	c := start(t).client(t)
	_, err := c.Apply(t.Context(), &outriggerv1.ApplyRequest{Resources: parse(t, upstream+"---\n"+idp)})
	wantCode(t, "Apply", err, connect.CodeFailedPrecondition)
	if !strings.Contains(err.Error(), "--secrets-key-file") || strings.Contains(err.Error(), planted) {
		t.Errorf("%v; want what to do about it", err)
	}
	if list, err := c.List(t.Context(), &outriggerv1.ListRequest{}); err != nil || len(list.Resources) != 0 {
		t.Errorf("stored %v (%v), want nothing", list, err)
	}
	apply(t, c, upstream)
}

func TestMistakesInASecretDoNotTellIt(t *testing.T) {
	s := startSealed(t)
	for name, spec := range map[string]string{
		"a number":        `{"values":{"pin":4711}}`,
		"a list":          `{"values":{"pin":["4711"]}}`,
		"no mapping":      `{"values":"4711"}`,
		"a wrong field":   `{"value":{"pin":"4711"}}`,
		"a wrong key":     `{"values":{"a b":"4711"}}`,
		"two and one bad": `{"values":{"a":"4711","b":true}}`,
		"too long":        `{"values":{"a":"` + strings.Repeat("4711", 20_000) + `"}}`,
	} {
		status, body := s.post(t, "Apply", `{"resources":[{"kind":"Secret","name":"x","spec":`+spec+`}]}`)
		if status != 400 || !strings.Contains(body, "resources[0].spec.value") || strings.Contains(body, "4711") {
			t.Errorf("%s: %d %s; want 400 and where, without the value", name, status, body)
		}
	}
}

func TestASecretThatIsNamedCannotBeDeleted(t *testing.T) {
	c := startSealed(t).client(t)
	apply(t, c, idp+`---
kind: Upstream
name: weather
spec: {http: {url: "http://127.0.0.1:1/mcp"}, credential: {secret: {name: idp, key: token}}}
`)
	_, err := c.Delete(t.Context(), &outriggerv1.DeleteRequest{Kind: "Secret", Name: "idp"})
	wantCode(t, "Delete", err, connect.CodeFailedPrecondition)
	if err == nil || !strings.Contains(err.Error(), "Upstream/weather") {
		t.Errorf("%v; want who names it", err)
	}
}
