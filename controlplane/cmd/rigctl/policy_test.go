package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/identity/apikey"
)

func TestAKeyIsAloneOnStandardOutput(t *testing.T) {
	r := newRig(t)
	r.run(guarded, "apply", "-f", "-")
	status, key, stderr := r.try("", "create", "key", "nightly", "--owner", "jo", "--tenant", "acme", "--scope", "write", "--scope", "read",
		"--group", "robots", "--label", "team=sky", "--expires", "2027-01-31T13:00:00+01:00")
	if status != 0 || !apikey.Valid(strings.TrimSuffix(key, "\n")) || stderr != "Key/nightly expires 2027-01-31T12:00:00Z; its key is shown only now\n" {
		t.Errorf("exit %d, standard output %q, standard error %q; want the key, and its end", status, key, stderr)
	}
	text := r.run("", "get", "key", "nightly", "-o", "yaml")
	for _, want := range []string{
		"hash: " + apikey.Hash(strings.TrimSpace(key), []byte("pepper")), "owner: jo", "tenant: acme", "- write\n", "- robots\n", "team: sky", "expires: \"2027-01-31T12:00:00Z\"",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, strings.TrimSpace(key)) {
		t.Errorf("the key is shown again:\n%s", text)
	}
	status, stdout, stderr := r.try("", "create", "key", "nightly")
	if status != 1 || stdout != "" || !strings.Contains(stderr, "Key/nightly exists already") {
		t.Errorf("again: exit %d, %q, %q; want that it exists", status, stdout, stderr)
	}
	var made struct {
		Key      string
		Resource struct {
			Kind, Name string
			Spec       map[string]any
		}
	}
	out := r.run("", "create", "key", "other", "-o", "json")
	if err := json.Unmarshal([]byte(out), &made); err != nil || !apikey.Valid(made.Key) || made.Resource.Name != "other" ||
		made.Resource.Spec["hash"] != apikey.Hash(made.Key, []byte("pepper")) {
		t.Errorf("%s (%v), want the key and its Key", out, err)
	}
}

func TestASecretIsNeverShown(t *testing.T) {
	r := newRig(t)
	r.write("all.yaml", upstream+"---\n"+binding+"---\n"+guarded)
	for _, command := range []string{
		"validate -f all.yaml -o yaml", "apply -f all.yaml --dry-run -o json", "apply -f all.yaml -o json", "apply -f all.yaml",
		"get", "get secrets -o yaml", "get secret idp -o json", "get -o wide",
	} {
		_, stdout, stderr := r.try("", strings.Fields(command)...)
		if strings.Contains(stdout+stderr, "s3cret-planted") {
			t.Errorf("%s shows the value:\n%s%s", command, stdout, stderr)
		}
	}
	if out := r.run("", "get", "secret", "idp", "-o", "yaml"); !strings.Contains(out, `token: ""`) {
		t.Errorf("no key with an empty value in\n%s", out)
	}
	status, _, stderr := r.try(`{"kind":"Secret","name":"pin","spec":{"values":{"pin":4711}}}`, "apply", "-f", "-")
	if status != 1 || !strings.Contains(stderr, "Secret/pin: spec.values.pin: expected a string (put it in quotes)") || strings.Contains(stderr, "4711") {
		t.Errorf("exit %d, %s; want what is wrong, without the value", status, stderr)
	}
}

func TestExplainSaysWhichRuleDecides(t *testing.T) {
	r := newRig(t)
	r.run(upstream+"---\n"+binding+"---\n"+guarded, "apply", "-f", "-")
	r.run("", "create", "key", "nightly", "--tenant", "acme")
	jo := []string{"--as", "https://idp.example|jo"}
	for name, row := range map[string]struct {
		args []string
		want string // the first line
	}{
		"allowed":    {append(jo, "--group", "staff", "--call", "get_x", "--args", "{}"), `allowed: Policy/rules allows it by rule "staff"`},
		"denied":     {append(jo, "--group", "staff", "--call", "get_secret", "--args", "{}"), `denied: Policy/rules denies it by rule "never"`},
		"nothing":    {append(jo, "--call", "get_x", "--args", "{}"), `denied: no rule allows it`},
		"a key":      {[]string{"--as", "key:nightly", "--call", "put", "--args", "{}"}, `denied, Tenant/acme: no rule allows it; it would be allowed with the scopes that are missing: write`},
		"a list":     {[]string{"--call", "read_file"}, `allowed: Policy/rules allows it by rule "srv"; Policy/trial, which only audits, denies it by rule "no-srv". Without arguments this is whether some may be`},
		"its call":   {[]string{"--call", "read_file", "--args", `{"path":"/etc/x"}`}, `denied, listed: no rule allows it`},
		"hints":      {[]string{"--call", "x", "--args", "{}", "--hint", "readOnly=true"}, `allowed: Policy/rules allows it by rule "safe"`},
		"a resource": {[]string{"--read", "file:///x"}, `denied: no rule allows it`},
		"a prompt":   {[]string{"--prompt", "hello"}, `denied: no rule allows it`},
		"a method":   {[]string{"--method", "tools/list"}, `allowed: no rule denies tools/list, which is about nothing in particular`},
		"a stranger": {[]string{"--as", "spiffe://acme/x", "--call", "get_x"}, `denied: Policy/who does not let the caller in: it takes no certificates`},
		"a claim":    {append(jo, "--claims", `{"groups":["staff"]}`, "--call", "get_x", "--args", "{}"), `allowed: Policy/rules allows it by rule "staff"`},
	} {
		out := r.run("", append([]string{"explain", "--binding", "demo"}, row.args...)...)
		if line, _, _ := strings.Cut(out, "\n"); line != row.want {
			t.Errorf("%s: %v\n got %s\nwant %s", name, row.args, line, row.want)
		}
	}
}

func TestExplainShowsEveryRule(t *testing.T) {
	r := newRig(t)
	r.run(upstream+"---\n"+binding+"---\n"+guarded, "apply", "-f", "-")
	args := []string{"explain", "--binding", "demo", "--as", "https://idp.example|jo", "--group", "staff", "--call", "get_secret", "--args", "{}"}
	_, table, _ := strings.Cut(r.run("", args...), "\n\n")
	want := `POLICY   RULE     ACTION   MATCHED     POLICY IS
rules    staff    allow    yes
rules    acme     allow    no: tools
rules    srv      allow    no: tools
rules    safe     allow    no: hints
rules    never    deny     yes
trial    no-srv   deny     no: tools   audit only
`
	if strings.Join(strings.Fields(table), " ") != strings.Join(strings.Fields(want), " ") || !strings.HasPrefix(table, "POLICY   RULE     ACTION   MATCHED") {
		t.Errorf("got\n%s\nwant\n%s", table, want)
	}
	var got explanation
	out := r.run("", append(args, "-o", "json")...)
	if err := json.Unmarshal([]byte(out), &got); err != nil || got.Allowed || got.Policy != "rules" || got.Rule != "never" || len(got.Rules) != 6 ||
		got.Rules[5] != (explained{Policy: "trial", Rule: "no-srv", Action: "deny", Unmatched: "tools", AuditOnly: true}) {
		t.Errorf("%v in\n%s", err, out)
	}
}

func TestARuleThatCannotWorkIsRefusedWithItsPlace(t *testing.T) {
	r := newRig(t)
	r.write("p.yaml", `kind: Policy
name: p
spec:
  rules:
    - {action: allow, tools: [a], when: 'principal.sbuject == "jo"'}
    - {action: allow, when: 'method == 1'}
    - {action: deny, when: 'tool.name == "a" && tool.name == "b"'}
`)
	want := `rigctl: refused, 3 mistakes:
  p.yaml: Policy/p: spec.rules[0].when: line 1, column 10: undefined field 'sbuject'
  p.yaml: Policy/p: spec.rules[1].when: line 1, column 8: found no matching overload`
	for _, command := range []string{"apply", "validate"} {
		status, _, stderr := r.try("", command, "-f", "p.yaml")
		if status != 1 || !strings.HasPrefix(stderr, want) || !strings.Contains(stderr, "spec.rules[2].when: line 1, column 18: can never be true") {
			t.Errorf("%s: exit %d\n%s\nwant it to begin with\n%s", command, status, stderr, want)
		}
	}
}

func TestKindsHaveTheirPlurals(t *testing.T) {
	for _, word := range []string{"policy", "Policies", "keys", "key", "secrets", "TENANTS"} {
		if _, err := parseKind(word); err != nil {
			t.Error(err)
		}
	}
	if _, err := parseKind("keies"); err == nil {
		t.Error("keies is taken for a kind")
	}
}
