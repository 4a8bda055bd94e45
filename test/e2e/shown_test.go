package e2e

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// secrets are texts that nothing may show, by what they are.
type secrets map[string]string

// token adds a token. Its last part is what nobody can guess.
func (s secrets) token(what, token string) string {
	s[what] = token[strings.LastIndex(token, ".")+1:][:40]
	return token
}

// pepper adds that of a sidecar's identity, in every form that a program might show it in.
func (s secrets) pepper(t *testing.T, stateDir string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(stateDir, "identity.pem"))
	if err != nil {
		t.Fatal(err)
	}
	ring := &outriggerv1.KeyRing{}
	for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "OUTRIGGER KEY RING" {
			err = proto.Unmarshal(block.Bytes, ring)
		}
	}
	if err != nil || len(ring.Pepper) != 32 {
		t.Fatalf("the identity has %d bytes of pepper (%v), want 32", len(ring.Pepper), err)
	}
	s["the pepper"], s["the pepper in hex"] = string(ring.Pepper), hex.EncodeToString(ring.Pepper)
	s["the pepper in base64"] = strings.TrimRight(base64.StdEncoding.EncodeToString(ring.Pepper), "=")
	s["the pepper as numbers"] = strings.Trim(fmt.Sprint(ring.Pepper), "[]")
	s["the pepper as text"] = strings.Trim(fmt.Sprintf("%q", ring.Pepper), `"`)
}

// What callers and sidecars prove themselves with is in nothing that anybody can read, whether it was accepted or refused.
func TestNoCredentialIsShown(t *testing.T) {
	t.Parallel()
	hidden, i, dir := secrets{}, newIssuer(t), t.TempDir()
	p := startPlane(t, filepath.Join(t.TempDir(), "data"), "--log-level", "debug")
	url, tokens := newPeer("peer").serve(t)+statelessPath, tokenServer(t)
	hidden["a Secret's value"], hidden["a client's secret"], hidden["a client's wrong secret"] = "swordfish", "pearl-diver", "oyster-knife"
	p.apply(i.callers(""), rules("rules", everything+", {name: not-name, action: deny, tools: [name]}"),
		"kind: Secret\nname: desk\nspec: {values: {static: swordfish, client: pearl-diver, wrong: oyster-knife}}\n")
	exchange := "tokenExchange: {endpoint: {url: %q, clientId: desk, clientSecret: {secret: {name: desk, key: %s}}}}"
	for name, credential := range map[string]string{"static": "secret: {name: desk, key: static}",
		"client": fmt.Sprintf(exchange, tokens, "client"), "wrong": fmt.Sprintf(exchange, tokens, "wrong")} {
		p.apply(upstream(name, fmt.Sprintf("http: {url: %q}, credential: {%s}", url, credential)), binding(name, "/"+name, name, ""))
	}
	hidden["a key"], hidden["a disabled key"] = p.createKey("robot"), p.createKey("old")
	p.sets("Key", "old", "disabled", true)
	s := p.joinSidecar("edge-1", p.join(), dir, nil, "--log-level", "debug", "--pprof")
	for _, name := range []string{"static", "client", "wrong"} {
		p.runs("Binding", name, "edge-1 running")
	}
	p.runs("Key", "old", "edge-1 running")
	s.serves()
	hidden.pepper(t, dir)
	watching := start(t, []string{"RIGCTL_SERVER=http://" + p.api, "RIGCTL_TOKEN_FILE=" + filepath.Join(p.dir, "admin.token")}, "rigctl", "watch", "-o", "json")
	watching.says("desk")

	hidden["a key that nobody made"] = "outrigger_REzWuQJN164Kkib60uAjv2vDpfIQQxwl9cFBnS9Uhmf3ZVYWX"
	good := hidden.token("a token", i.token(t, "ann", nil))
	for _, tc := range []struct {
		path, credential, tool string
		want                   int
	}{
		{"/static", hidden["a key"], "echo", 200}, {"/static", hidden["a key"], "name", 403},
		{"/client", hidden["a key"], "echo", 200}, // with an error in it: there is no token to exchange
		{"/static", hidden["a disabled key"], "echo", 401}, {"/static", hidden["a key that nobody made"], "echo", 401},
		{"/static", good, "echo", 200}, {"/static", good, "name", 403}, {"/client", good, "credential", 200},
		{"/wrong", good, "echo", 200}, // likewise: there is none to be had
		{"/static", hidden.token("an expired token", i.token(t, "ann", map[string]any{"exp": time.Now().Unix() - 3600})), "echo", 401},
		{"/static", hidden.token("a forged token", newIssuer(t).token(t, "ann", map[string]any{"iss": i.url})), "echo", 401},
		{"/static", hidden.token("a token of another issuer's", newIssuer(t).token(t, "ann", nil)), "echo", 401},
		{"/static?access_token=" + hidden.token("a token in a query", i.token(t, "joe", nil)), "", "echo", 400},
	} {
		s.comesTo(t, tc.path, tc.credential, tc.tool, tc.want)
	}
	shown := p.shows(t, s)
	shown["rigctl watch"] = watching.output()
	for where, text := range shown {
		if text == "" {
			t.Errorf("%s is empty", where)
		}
		for what, secret := range hidden {
			if where == "the store" && what == "the pepper" {
				continue // it is kept there, beside the authority's key, as docs/operations.md says
			}
			if strings.Contains(text, secret) {
				t.Errorf("%s shows %s", where, what)
			}
		}
	}
}

// shows is everything that the control plane and a sidecar let people read, failed configurations among it.
func (p *plane) shows(t *testing.T, s *sidecar) (shown map[string]string) {
	t.Helper()
	shown = map[string]string{"explain": p.must("explain", "--binding", "static", "--as", "key:robot", "--call", "echo", "-o", "json")}
	for _, format := range []string{"table", "wide", "yaml", "json"} {
		shown["rigctl get -o "+format] = p.must("get", "-o", format)
	}
	for name, bad := range map[string]string{
		"a Secret that is no map":           "kind: Secret\nname: desk\nspec: {values: [swordfish]}\n",
		"a Secret with an unknown field":    "kind: Secret\nname: desk\nspec: {values: {static: swordfish}, more: pearl-diver}\n",
		"a Secret with a value's key twice": "kind: Secret\nname: desk\nspec: {values: {static: swordfish, static: pearl-diver}}\n",
		"a Secret with a bad key":           "kind: Secret\nname: desk\nspec: {values: {'a b': swordfish}}\n",
	} {
		out, errs, status := p.rigctl("apply", "-f", writeFile(t, filepath.Join(t.TempDir(), "bad.yaml"), bad))
		if status == 0 {
			t.Errorf("%s was applied", name)
		}
		shown["rigctl apply of "+name] = out + errs
	}
	var err error
	for _, page := range []string{"/config", "/metrics", "/readyz", "/debug/pprof/cmdline"} {
		if _, shown["the sidecar's "+page], err = get(t, s.admin, page); err != nil {
			t.Error(err)
		}
	}
	for _, page := range []string{"/metrics", "/readyz"} {
		if _, shown["the control plane's "+page], err = get(t, p.admin, page); err != nil {
			t.Error(err)
		}
	}
	shown["the store"] = stored(t, filepath.Join(p.dir, "etcd"))
	shown["the sidecar's log"], shown["the control plane's log"] = s.output(), p.output()
	return shown
}
