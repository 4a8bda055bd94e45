package policy

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/proto/expression"
	"github.com/outrigger-mesh/outrigger/sidecar/identity"
)

// The callers of docs/policy.md.
var docCallers = map[string]*identity.Principal{
	"alice": {ID: "https://idp.example|alice", Issuer: "https://idp.example", Subject: "alice", Groups: []string{"dev", "staff"}, Scopes: []string{"read"},
		Claims: json.RawMessage(`{"department":"weather"}`), Tenant: "acme"},
	"bob":    {ID: "https://idp.example|bob", Issuer: "https://idp.example", Subject: "bob", Groups: []string{"guests"}, Scopes: []string{"read", "write"}, Tenant: "globex"},
	"ci":     {ID: "key:ci", Key: "ci", KeyLabels: map[string]string{"team": "blue"}},
	"nobody": nil,
}

var decisionLine = regexp.MustCompile(`^(\w+) +(tool|list|prompt|resource|method) (\S+)( \S*)? +(allowed|denied)(?: by ([\w/-]+))?(?:, lacks ([\w ]+))?(?:, shadow (\S+))?$`)

func TestThePolicyPageIsTrue(t *testing.T) {
	page, err := os.ReadFile("../../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	var s *Set
	seen := map[string]int{}
	for _, block := range regexp.MustCompile("(?s)```(\\w+)\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		switch kind, text := block[1], block[2]; kind {
		case "yaml":
			s, err = Compile(Options{Binding: "desk", Upstreams: []string{"files"}, Policies: policiesIn(t, text)})
			if err != nil {
				t.Fatalf("%v in\n%s", err, text)
			}
			seen[kind]++
		case "decisions":
			for line := range strings.Lines(text) {
				checkDocLine(t, s, strings.TrimSpace(line))
				seen[kind]++
			}
		case "cel":
			for line := range strings.Lines(text) {
				if problems := expression.Check(strings.TrimSpace(line)); problems != nil {
					t.Errorf("%s: %v", line, problems)
				}
				seen[kind]++
			}
		default:
			t.Errorf("a block of %s, which nothing checks", kind)
		}
	}
	for _, limit := range []string{
		fmt.Sprintf("%d bytes | the call is denied", maxSubjectName), fmt.Sprintf("%d callers", maxCallers),
		fmt.Sprintf("%d decisions", maxVerdicts), fmt.Sprintf("names of %d bytes", maxRemembered),
	} {
		if !strings.Contains(string(page), limit) {
			t.Errorf("the page does not say %q", limit)
		}
	}
	if seen["yaml"] < 7 || seen["decisions"] < 30 || seen["cel"] < 8 {
		t.Errorf("the page has %v: fewer examples than it had", seen)
	}
}

// checkDocLine holds a line to what the policies before it come to.
func checkDocLine(t *testing.T, s *Set, line string) {
	m := decisionLine.FindStringSubmatch(line)
	if m == nil {
		t.Errorf("not a decision: %s", line)
		return
	}
	who, known := docCallers[m[1]]
	if !known {
		t.Errorf("the page has no %s", m[1])
	}
	r := &Request{Principal: who, Name: []byte(m[3]), Arguments: []byte(cmp.Or(strings.TrimSpace(m[4]), "{}")), Time: noon}
	switch m[2] {
	case "tool", "list":
		r.Method, r.Subject = "tools/call", Tool
	case "prompt":
		r.Method, r.Subject = "prompts/get", Prompt
	case "resource":
		r.Method, r.Subject = "resources/read", Resource
	case "method":
		r.Method, r.Name = m[3], nil
	}
	if m[2] == "list" {
		if got := s.List(r); got != (m[5] == "allowed") {
			t.Errorf("%s: listed %v", line, got)
		}
		return
	}
	d := s.Decide(r)
	by := strings.TrimSuffix(d.Policy+"/"+d.Rule, "/")
	shadow := strings.TrimSuffix(d.ShadowPolicy+"/"+d.ShadowRule, "/")
	if d.Allowed != (m[5] == "allowed") || by != m[6] || strings.Join(d.MissingScopes, " ") != m[7] || shadow != m[8] {
		t.Errorf("%s: decided %+v", line, d)
	}
}

func TestTheMistakesOfThePolicyPageAreRefusedAsItSays(t *testing.T) {
	page, err := os.ReadFile("../../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "### What is refused when it is written")
	section, _, _ = strings.Cut(section, "\n## ")
	rows := regexp.MustCompile("(?m)^\\| `(.*?)` \\| (.*) \\|$").FindAllStringSubmatch(section, -1)
	if len(rows) < 8 {
		t.Errorf("%d mistakes on the page, want 8", len(rows))
	}
	for _, row := range rows {
		problems := expression.Check(row[1])
		if len(problems) == 0 {
			t.Errorf("%s: accepted", row[1])
			continue
		}
		if got := fmt.Sprintf("%d:%d %s", problems[0].Line, problems[0].Column, problems[0].Message); !strings.Contains(got, row[2]) {
			t.Errorf("%s: %s, want %s", row[1], got, row[2])
		}
	}
}
