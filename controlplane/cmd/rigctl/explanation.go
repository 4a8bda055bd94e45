package main

import (
	"fmt"
	"io"
	"strings"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// explanation is an answer as rigctl writes it for programs.
type explanation struct {
	Allowed       bool        `json:"allowed" yaml:"allowed"`
	Listed        bool        `json:"listed" yaml:"listed"`
	Policy        string      `json:"policy" yaml:"policy"`
	Rule          string      `json:"rule,omitempty" yaml:"rule,omitempty"`
	Reason        string      `json:"reason" yaml:"reason"`
	Tenant        string      `json:"tenant,omitempty" yaml:"tenant,omitempty"`
	MissingScopes []string    `json:"missingScopes,omitempty" yaml:"missingScopes,omitempty"`
	Rules         []explained `json:"rules,omitempty" yaml:"rules,omitempty"`
}

// explained is what one rule came to.
type explained struct {
	Policy    string `json:"policy" yaml:"policy"`
	Rule      string `json:"rule" yaml:"rule"`
	Action    string `json:"action" yaml:"action"`
	Matched   bool   `json:"matched" yaml:"matched"`
	Unmatched string `json:"unmatched,omitempty" yaml:"unmatched,omitempty"`
	AuditOnly bool   `json:"auditOnly,omitempty" yaml:"auditOnly,omitempty"`
	Final     bool   `json:"final,omitempty" yaml:"final,omitempty"`
}

func toExplanation(res *outriggerv1.ExplainResponse) explanation {
	out := explanation{
		Allowed: res.Allowed, Listed: res.Listed, Policy: res.Policy, Rule: res.Rule, Reason: res.Reason, Tenant: res.Tenant,
		MissingScopes: res.MissingScopes,
	}
	for _, r := range res.Rules {
		out.Rules = append(out.Rules, explained{r.Policy, r.Rule, actionWord(r.Action), r.Matched, r.Unmatched, r.AuditOnly, r.Final})
	}
	return out
}

func actionWord(a outriggerv1.Action) string {
	return strings.ToLower(strings.TrimPrefix(a.String(), "ACTION_"))
}

// writeExplanation writes the answer, its reason and a table of rules.
func writeExplanation(w io.Writer, res *outriggerv1.ExplainResponse, subject bool) error {
	words := []string{"denied"}
	if res.Allowed {
		words[0] = "allowed"
	}
	if subject && res.Listed != res.Allowed {
		words = append(words, map[bool]string{true: "listed", false: "not listed"}[res.Listed])
	}
	if res.Tenant != "" {
		words = append(words, "Tenant/"+res.Tenant)
	}
	if _, err := fmt.Fprintf(w, "%s: %s\n", strings.Join(words, ", "), res.Reason); err != nil {
		return err
	}
	if len(res.Rules) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	rows := [][]string{{"POLICY", "RULE", "ACTION", "MATCHED", "POLICY IS"}}
	for _, r := range res.Rules {
		rows = append(rows, explainedRow(r))
	}
	return writeTable(w, rows)
}

func explainedRow(r *outriggerv1.ExplainedRule) []string {
	matched := "no: " + r.Unmatched
	if r.Matched {
		matched = "yes"
		if r.Unmatched != "" { // its expression failed
			matched += ": " + r.Unmatched
		}
	}
	kind := ""
	switch {
	case r.Final:
		kind = "final"
	case r.AuditOnly:
		kind = "audit only"
	}
	return []string{r.Policy, r.Rule, actionWord(r.Action), matched, kind}
}
