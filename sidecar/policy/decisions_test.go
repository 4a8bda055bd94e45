package policy

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/identity"
)

// The callers of the table, by its columns.
var callers = []struct {
	name string
	*identity.Principal
}{
	{"nobody", nil},
	{"alice", &identity.Principal{
		ID: "https://idp|alice", Issuer: "https://idp", Subject: "alice", Groups: []string{"dev"}, Scopes: []string{"read"},
		Tenant: "acme", Claims: json.RawMessage(`{"department":"ops"}`), Provider: "corp",
	}},
	{"bob", &identity.Principal{
		ID: "https://idp|bob", Issuer: "https://idp", Subject: "bob", Groups: []string{"ops", "staff"}, Scopes: []string{"read", "write"},
		Tenant: "globex", Claims: json.RawMessage(`{"department":"sales"}`), Provider: "corp",
	}},
	{"ci", &identity.Principal{ID: "key:ci", Key: "ci", KeyLabels: map[string]string{"team": "blue"}, Groups: []string{"robots"}, Scopes: []string{"write"}, Tenant: "acme", Provider: "keys"}},
	{"svc", &identity.Principal{ID: "spiffe://example.org/svc", SPIFFEID: "spiffe://example.org/svc", Provider: "mesh"}},
}

// decisions is the table. A row is a call and what becomes of it for each caller: + or -, the rule that decided (of policy p,
// or POLICY/RULE), the scopes that are missing after "?", and the shadow after "~". A row of a list entry has + or -.
var decisions = []struct{ name, policies, rows string }{
	{"shorthands", rulesOf(
		"name: anyone, action: allow, tools: ['ping_*'], prompts: [hello]",
		"name: devs, action: allow, groups: [dev, ops], tools: ['get_*', search], resources: ['file:///public/*']",
		"name: write, action: allow, tools: ['put_*'], scopes: [write]",
		"name: robots, action: allow, principals: ['key:*', 'spiffe://example.org/*'], methods: [tools/call], tools: [deploy]",
		"name: no-secrets, action: deny, tools: ['*secret*'], principals: ['*|alice', anonymous]",
	), `
		tool ping_x                  | +anyone     | +anyone     | +anyone | +anyone | +anyone
		tool ping_secret             | -no-secrets | -no-secrets | +anyone | +anyone | +anyone
		prompt hello                 | +anyone     | +anyone     | +anyone | +anyone | +anyone
		prompt bye                   | -           | -           | -       | -       | -
		prompt ping_x                | -           | -           | -       | -       | -
		tool get_x                   | -           | +devs       | +devs   | -       | -
		tool get_secret              | -no-secrets | -no-secrets | +devs   | -       | -
		tool search                  | -           | +devs       | +devs   | -       | -
		tool Search                  | -           | -           | -       | -       | -
		tool put_x                   | -?write     | -?write     | +write  | +write  | -?write
		tool put_secret              | -no-secrets | -no-secrets | +write  | +write  | -?write
		tool deploy                  | -           | -           | -       | +robots | +robots
		resource file:///public/a    | -           | +devs       | +devs   | -       | -
		resource file:///private/a   | -           | -           | -       | -       | -
		resource FILE:///public/a    | -           | -           | -       | -       | -
		method tools/list            | +           | +           | +       | +       | +
		method vendor/x              | -           | -           | -       | -       | -`},
	{"breadth", `
kind: Policy
name: base
spec: {rules: [{name: any, action: allow, tools: ["*"]}, {name: no-drop, action: deny, tools: [drop]}]}
---
kind: Policy
name: site
spec: {target: {bindings: [demo]}, rules: [{name: ops-drop, action: allow, tools: [drop], groups: [ops]}, {name: no-format, action: deny, tools: [format]}]}
---
kind: Policy
name: files
spec: {target: {upstreams: [files]}, rules: [{name: staff-format, action: allow, tools: [format], groups: [staff]}]}
---
kind: Policy
name: acme
spec: {target: {tenants: [acme]}, rules: [{name: no-read, action: deny, tools: [read]}, {name: ci-drop, action: allow, tools: [drop], principals: ["key:*"]}]}
---
kind: Policy
name: elsewhere
spec: {target: {bindings: [other]}, rules: [{action: deny}]}
`, `
		tool list   | +base/any       | +base/any       | +base/any           | +base/any       | +base/any
		tool drop   | -base/no-drop   | -base/no-drop   | +site/ops-drop      | +acme/ci-drop   | -base/no-drop
		tool format | -site/no-format | -site/no-format | +files/staff-format | -site/no-format | -site/no-format
		tool read   | +base/any       | -acme/no-read   | +base/any           | -acme/no-read   | +base/any
		prompt read | -               | -               | -                   | -               | -`},
	{"final", `
kind: Policy
name: ceiling
spec: {final: true, rules: [{name: ok, action: allow, tools: ["get_*", "put_*"]}, {name: never, action: deny, tools: [put_root]}]}
---
kind: Policy
name: site
spec: {target: {bindings: [demo]}, rules: [{name: all, action: allow, tools: ["*"]}, {name: no-dev, action: deny, tools: [get_x], groups: [dev]}]}
---
kind: Policy
name: acme
spec: {final: true, target: {tenants: [acme]}, rules: [{name: acme-read, action: allow, tools: ["get_*"], scopes: [read]}]}
`, `
		tool get_y        | +site/all      | +acme/acme-read | +site/all      | -acme/?read    | +site/all
		tool get_x        | +site/all      | +acme/acme-read | +site/all      | -acme/?read    | +site/all
		tool put_x        | +site/all      | -acme/          | +site/all      | -acme/         | +site/all
		tool put_root     | -ceiling/never | -ceiling/never  | -ceiling/never | -ceiling/never | -ceiling/never
		tool other        | -ceiling/      | -ceiling/       | -ceiling/      | -ceiling/      | -ceiling/
		method initialize | +              | +               | +              | +              | +
		method vendor/x   | -ceiling/      | -ceiling/       | -ceiling/      | -ceiling/      | -ceiling/`},
	{"expressions about the caller", rulesOf(
		`name: claim, action: allow, tools: [a], when: 'principal.claims.department == "ops"'`,
		`name: label, action: allow, tools: [b], when: 'has(principal.key) && principal.keyLabels.team == "blue"'`,
		`name: tenant, action: allow, tools: [c], when: 'tenant == "acme"'`,
		`name: mix, action: allow, tools: ["d*"], when: 'tool.name == "d_" + tenant'`,
		`name: known, action: deny, tools: [c, e], when: 'principal.spiffeId == "" && !("robots" in principal.groups)'`,
		`name: e, action: allow, tools: [e]`,
	), `
		tool a        | -      | +claim | -      | -       | -
		tool b        | -      | -      | -      | +label  | -
		tool c        | -known | -known | -known | +tenant | -
		tool d_acme   | -      | +mix   | -      | +mix    | -
		tool d_globex | -      | -      | +mix   | -       | -
		tool d_       | +mix   | -      | -      | -       | +mix
		tool e        | -known | -known | -known | +e      | +e`},
	{"arguments", rulesOf(
		`name: tmp, action: allow, tools: [write_file], when: 'args.path.startsWith("/tmp/")'`,
		`name: any, action: allow, tools: [read_file], groups: [dev, ops]`,
		`name: no-etc, action: deny, tools: [read_file], when: 'has(args.path) && args.path.startsWith("/etc/")'`,
		`name: strict, action: deny, tools: [run], when: 'args.cmd != "ls"'`,
		`name: run, action: allow, tools: [run]`,
		`name: bob, action: allow, tools: [odd], when: 'args.x == 1 && principal.subject == "bob"'`,
		`name: gone, action: deny, tools: [gone], when: 'args.x == 1 || method == "tools/call"'`,
		`name: not-gone, action: allow, tools: [gone]`,
		`name: scoped, action: allow, tools: [send], scopes: [write], when: 'args.to == "me"'`,
	), `
		tool write_file {"path":"/tmp/a"} | +tmp    | +tmp    | +tmp    | +tmp    | +tmp
		tool write_file {"path":"/etc/a"} | -       | -       | -       | -       | -
		tool write_file {}                | -       | -       | -       | -       | -
		list write_file                   | +       | +       | +       | +       | +
		tool read_file {"path":"/a"}      | -       | +any    | +any    | -       | -
		tool read_file {"path":"/etc/a"}  | -no-etc | -no-etc | -no-etc | -no-etc | -no-etc
		tool read_file {}                 | -       | +any    | +any    | -       | -
		tool read_file [1]                | -no-etc | -no-etc | -no-etc | -no-etc | -no-etc
		list read_file                    | -       | +       | +       | -       | -
		tool run {"cmd":"ls"}             | +run    | +run    | +run    | +run    | +run
		tool run {"cmd":"rm"}             | -strict | -strict | -strict | -strict | -strict
		tool run {}                       | -strict | -strict | -strict | -strict | -strict
		list run                          | +       | +       | +       | +       | +
		tool odd {"x":1}                  | -       | -       | +bob    | -       | -
		tool odd {"x":1.0}                | -       | -       | +bob    | -       | -
		tool odd {"x":"1"}                | -       | -       | -       | -       | -
		list odd                          | -       | -       | +       | -       | -
		tool gone {"x":2}                 | -gone   | -gone   | -gone   | -gone   | -gone
		list gone                         | -       | -       | -       | -       | -
		tool send {"to":"me"}             | -?write | -?write | +scoped | +scoped | -?write
		tool send {"to":"all"}            | -       | -       | -       | -       | -
		list send                         | -       | -       | +       | +       | -`},
	{"hints, scopes and shadows", rulesOf(
		"name: look, action: allow, hints: {readOnly: true}",
		"name: admin, action: allow, tools: ['*'], scopes: [admin, write]",
		"name: closer, action: allow, tools: [close], scopes: [close]",
		"name: careful, action: deny, tools: [danger], scopes: [write, admin]",
	) + `---
kind: Policy
name: trial
spec: {auditOnly: true, rules: [{name: soon, action: deny, tools: [peek], groups: [ops]}, {name: sooner, action: allow, tools: [peek, rest]}]}
---
kind: Policy
name: trial-acme
spec: {auditOnly: true, target: {tenants: [acme]}, rules: [{name: none, action: deny}]}
`, `
		tool peek r   | +look           | +look~trial-acme/none | +look~trial/soon | +look~trial-acme/none | +look
		tool rest r   | +look           | +look~trial-acme/none | +look            | +look~trial-acme/none | +look
		tool put      | -?admin,write   | -?admin,write         | -?admin          | -?admin               | -?admin,write
		tool close    | -?close         | -?close               | -?admin          | -?admin               | -?close
		tool danger   | -               | -                     | -                | -                     | -
		tool danger r | +look           | +look~trial-acme/none | +look            | +look~trial-acme/none | +look
		prompt peek   | -               | -                     | -                | -                     | -`},
	{"audits alone", `
kind: Policy
name: trial
spec: {auditOnly: true, rules: [{name: ok, action: allow, tools: [a]}, {name: no, action: deny, tools: [a], tenants: [acme]}]}
`, `
		tool a            | +        | +~trial/no | +        | +~trial/no | +
		tool b            | +~trial/ | +~trial/   | +~trial/ | +~trial/   | +~trial/
		method tools/list | +        | +          | +        | +          | +`},
}

// row is a line of the table.
type row struct {
	text    string
	request Request
	list    bool
	cells   []string
}

func rowsOf(t *testing.T, text string) (rows []row) {
	for line := range strings.Lines(strings.TrimSpace(text)) {
		parts := strings.Split(strings.TrimSpace(line), "|")
		words := strings.Fields(parts[0])
		r := row{text: strings.TrimSpace(parts[0]), request: Request{Time: noon, Name: []byte(words[1])}}
		switch words[0] {
		case "tool", "list":
			r.request.Method, r.request.Subject, r.list = "tools/call", Tool, words[0] == "list"
		case "prompt":
			r.request.Method, r.request.Subject = "prompts/get", Prompt
		case "resource":
			r.request.Method, r.request.Subject = "resources/read", Resource
		case "method":
			r.request.Method, r.request.Name = words[1], nil
		default:
			t.Fatalf("a row begins with %q", words[0])
		}
		for _, w := range words[2:] {
			if w == "r" {
				r.request.Hints = &Hints{ReadOnly: true}
			} else {
				r.request.Arguments = []byte(w)
			}
		}
		for _, cell := range parts[1:] {
			r.cells = append(r.cells, strings.TrimSpace(cell))
		}
		if len(r.cells) != len(callers) {
			t.Fatalf("%d cells in %s", len(r.cells), line)
		}
		rows = append(rows, r)
	}
	return rows
}

// cellOf is a decision as the table has it.
func cellOf(d Decision) string {
	name := func(policy, rule string) string {
		if policy == "p" {
			return rule
		}
		if policy == "" {
			return ""
		}
		return policy + "/" + rule
	}
	cell := "-"
	if d.Allowed {
		cell = "+"
	}
	cell += name(d.Policy, d.Rule)
	if d.MissingScopes != nil {
		cell += "?" + strings.Join(d.MissingScopes, ",")
	}
	if shadow := name(d.ShadowPolicy, d.ShadowRule); shadow != "" {
		cell += "~" + shadow
	}
	return cell
}

func TestDecisionsListsAndExplanationsAgreeWithTheTable(t *testing.T) {
	checked := 0
	for _, table := range decisions {
		t.Run(table.name, func(t *testing.T) {
			s := compiled(t, table.policies)
			for range 2 { // as found, and as remembered
				for _, row := range rowsOf(t, table.rows) {
					for i, who := range callers {
						r := row.request
						r.Principal = who.Principal
						if row.list {
							checkListed(t, s, &r, who.name+": "+row.text, row.cells[i] == "+")
						} else {
							checkDecided(t, s, &r, who.name+": "+row.text, row.cells[i])
						}
						checked++
					}
				}
			}
		})
	}
	if checked < 2*200 {
		t.Errorf("%d decisions are in the table, want 200", checked/2)
	}
}

// checkListed holds an entry of a list to the table: List, and Explain without arguments.
func checkListed(t *testing.T, s *Set, r *Request, text string, want bool) {
	t.Helper()
	d, _ := s.Explain(r)
	if got := s.List(r); got != want || d.Allowed != want {
		t.Errorf("%s: listed %v, explained %v, want %v", text, got, d.Allowed, want)
	}
}

// checkDecided holds a call to the table: Decide, Explain, and List as far as it follows.
func checkDecided(t *testing.T, s *Set, r *Request, text, want string) {
	t.Helper()
	d := s.Decide(r)
	if got := cellOf(d); got != want {
		t.Errorf("%s: decided %s, want %s", text, got, want)
	}
	listed := s.List(r)
	if d.Allowed && !listed || d.Allowed != listed && !s.NeedsArguments(r.Subject, r.Name) {
		t.Errorf("%s: decided %v, listed %v", text, d.Allowed, listed)
	}
	if r.Arguments == nil {
		r.Arguments = []byte("{}")
	}
	explained, rules := s.Explain(r)
	if cellOf(explained) != cellOf(d) {
		t.Errorf("%s: decided %s, explained as %s", text, cellOf(d), cellOf(explained))
	}
	for _, e := range rules {
		if (e.Unmatched == "") != e.Matched && !strings.HasPrefix(e.Unmatched, condWhen+": ") {
			t.Errorf("%s: %s/%s matched %v, unmatched %q", text, e.Policy, e.Rule, e.Matched, e.Unmatched)
		}
	}
	decider := func(e *outriggerv1.ExplainedRule) bool {
		return e.Policy == d.Policy && e.Rule == d.Rule && e.Matched && !e.AuditOnly && (e.Action == outriggerv1.Action_ACTION_ALLOW) == d.Allowed
	}
	if d.Rule != "" && !slices.ContainsFunc(rules, decider) {
		t.Errorf("%s: %s/%s decided, and is explained as %v", text, d.Policy, d.Rule, rules)
	}
}
