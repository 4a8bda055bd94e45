package e2e

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// comesTo checks the status of a call of a tool's by a credential, on the stateless wire.
func (s *sidecar) comesTo(t *testing.T, path, credential, tool string, want int) {
	t.Helper()
	res, err := newAsker(t, s.url+path, credential).post(within(t), "1", "tools/call", tool, fmt.Sprintf(`"name":%q,"arguments":{}`, tool))
	if err != nil {
		t.Fatal(err)
	}
	if got := outcome(res); !strings.HasPrefix(got, fmt.Sprint(want)) {
		t.Errorf("%s of %.12q at %s came to %s, want %d", tool, credential, path, got, want)
	}
}

// A sidecar that starts from its disk lets in whom it let in before, and nobody else: Keys too, whose pepper came with its
// certificate.
func TestCallersAndRulesOutliveARestartWithoutTheControlPlane(t *testing.T) {
	t.Parallel()
	p := startPlane(t, filepath.Join(t.TempDir(), "data"))
	i := newIssuer(t)
	p.apply(append(both(newPeer("peer").serve(t), ""), i.callers(", revoked: [{subject: eve}]"),
		rules("rules", everything+", {name: not-name, action: deny, tools: [name], principals: ['key:*']}"),
		"kind: Tenant\nname: acme\nspec: {disabled: true}\n")...)
	key, old, dir := p.createKey("robot"), p.createKey("old"), t.TempDir()
	p.sets("Key", "old", "disabled", true)
	s := p.joinSidecar("edge-1", p.join(), dir, nil)
	p.runs("Policy", "rules", "edge-1 running")
	p.runs("Key", "old", "edge-1 running")
	s.serves()
	check := func(s *sidecar) {
		t.Helper()
		for _, tc := range []struct {
			credential, tool string
			want             int
		}{
			{key, "echo", 200}, {key, "name", 403}, {old, "echo", 401}, {"", "echo", 401}, {key[:len(key)-1] + "x", "echo", 401},
			{i.token(t, "ann", nil), "name", 200}, {i.token(t, "eve", nil), "echo", 401},
			{i.token(t, "joe", map[string]any{"org": "acme"}), "echo", 403},
			{i.token(t, "ann", map[string]any{"aud": "elsewhere"}), "echo", 401},
			{newIssuer(t).token(t, "ann", map[string]any{"iss": i.url}), "echo", 401},
		} {
			s.comesTo(t, statelessPath, tc.credential, tc.tool, tc.want)
		}
	}
	check(s)
	p.stop()
	s.stop()
	again := startSidecar(t, nil, "--control-plane", p.xds, "--node-id", "edge-1", "--state-dir", dir)
	again.serves()
	check(again)
}

// Bad configuration never widens access: who was let in by the last good form is let in, and where there was none nobody is.
func TestAPolicyThatASidecarRefusesKeepsItsLastGoodForm(t *testing.T) {
	t.Parallel()
	const keyed = "kind: Policy\nname: %s\nspec: {target: {bindings: [%s]}, identity: {providers: [{name: keys, keys: {}}%s]}}\n"
	const bad = ", {name: staff, jwt: {issuer: 'https://idp.example', audiences: [desk], caFile: /does/not/exist.pem}}"
	p := startPlane(t, filepath.Join(t.TempDir(), "data"))
	p.apply(append(both(newPeer("peer").serve(t), ""), fmt.Sprintf(keyed, "old", "stateless", ""))...)
	key := p.createKey("robot")
	s := p.joinSidecar("edge-1", p.join(), t.TempDir(), nil)
	p.runs("Policy", "old", "edge-1 running")
	p.runs("Key", "robot", "edge-1 running")
	s.serves()

	p.apply(fmt.Sprintf(keyed, "old", "stateless", bad))
	mentions(t, p.runs("Policy", "old", "edge-1 refused").Status.String(), "/does/not/exist.pem")
	s.comesTo(t, statelessPath, key, "echo", http.StatusOK)
	s.comesTo(t, statelessPath, "", "echo", http.StatusUnauthorized)

	p.apply(fmt.Sprintf(keyed, "new", "fresh", bad), binding("fresh", "/fresh", "stateless", ""))
	mentions(t, p.runs("Policy", "new", "edge-1 refused").Status.String(), "/does/not/exist.pem")
	for _, credential := range []string{key, ""} {
		s.comesTo(t, "/fresh", credential, "echo", http.StatusServiceUnavailable)
	}
	eventually(t, "readyz says why", func() error {
		status, page, err := get(t, s.admin, "/readyz")
		if err == nil && (status != http.StatusServiceUnavailable || !containsAll(page, []string{"fresh", "/does/not/exist.pem"})) {
			err = fmt.Errorf("%d %s", status, page)
		}
		return err
	})
	s.comesTo(t, statelessPath, key, "echo", http.StatusOK)

	p.apply(fmt.Sprintf(keyed, "old", "stateless", ""), fmt.Sprintf(keyed, "new", "fresh", ""))
	p.runs("Policy", "new", "edge-1 running")
	s.serves()
	s.comesTo(t, "/fresh", key, "echo", http.StatusOK)
	s.comesTo(t, "/fresh", "", "echo", http.StatusUnauthorized)
}

// mentions checks that a text does.
func mentions(t *testing.T, text string, words ...string) {
	t.Helper()
	if !containsAll(text, words) {
		t.Errorf("got %s, want %q in it", text, words)
	}
}

// The last good form is on the sidecar's disk, too.
func TestTheLastGoodFormOfAPolicyOutlivesARestart(t *testing.T) {
	t.Parallel()
	const keyed = "kind: Policy\nname: keys\nspec: {identity: {providers: [{name: keys, keys: {}}%s]}}\n"
	p := startPlane(t, filepath.Join(t.TempDir(), "data"))
	p.apply(append(both(newPeer("peer").serve(t), ""), fmt.Sprintf(keyed, ""))...)
	key, dir := p.createKey("robot"), t.TempDir()
	s := p.joinSidecar("edge-1", p.join(), dir, nil)
	p.runs("Policy", "keys", "edge-1 running")
	p.runs("Key", "robot", "edge-1 running")
	p.apply(fmt.Sprintf(keyed, ", {name: staff, jwt: {issuer: 'https://idp.example', audiences: [desk], caFile: /does/not/exist.pem}}"))
	p.runs("Policy", "keys", "edge-1 refused")
	p.stop()
	s.stop()
	again := startSidecar(t, nil, "--control-plane", p.xds, "--node-id", "edge-1", "--state-dir", dir)
	again.serves()
	again.comesTo(t, statelessPath, key, "echo", http.StatusOK)
	again.comesTo(t, statelessPath, "", "echo", http.StatusUnauthorized)
}
