package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/structpb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// question is the flags of explain.
type question struct {
	binding, as            string
	groups, scopes         []string
	claims                 string
	call, read, prompt     string
	method, upstream, args string
	hints                  []string
}

func explainCommand(o *options) *cobra.Command {
	q := &question{}
	c := &cobra.Command{
		Use:   "explain --binding BINDING [--as PRINCIPAL] --call TOOL|--prompt PROMPT|--read URI|--method METHOD",
		Short: "Say whether a call would be allowed, and which rule decides, without making it",
		Long: "Say whether a call would be allowed, and which rule decides, without making it. It is what the sidecars of the\n" +
			"Binding decide once they run what is stored now. Nobody proves anything: --as is believed.\n\n" +
			"PRINCIPAL is as in rules: \"ISSUER|SUBJECT\" for a token, key:NAME, a SPIFFE id, or anonymous, the default.\n" +
			"The exit status is 0 whatever the answer.",
		Example: "  rigctl explain --binding weather --as key:nightly --call get_forecast --args '{\"city\":\"Basel\"}'\n" +
			"  rigctl explain --binding weather --as 'https://idp.example|jo' --group staff --read file:///docs/a.md",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			req, err := q.request()
			if err != nil {
				return err
			}
			return explain(c, o, req)
		},
	}
	f := c.Flags()
	f.StringVar(&q.binding, "binding", "", "the Binding at which the call comes")
	f.StringVar(&q.as, "as", "anonymous", "who calls")
	f.StringArrayVar(&q.groups, "group", nil, "a group of the token's; may be repeated")
	f.StringArrayVar(&q.scopes, "scope", nil, "a scope of the token's; may be repeated")
	f.StringVar(&q.claims, "claims", "", "the token's claims, a JSON object: groups, scopes and Tenant are read from it too")
	f.StringVar(&q.call, "call", "", "the tool that is called")
	f.StringVar(&q.prompt, "prompt", "", "the prompt that is got")
	f.StringVar(&q.read, "read", "", "the URI of the resource that is read")
	f.StringVar(&q.method, "method", "", "another method of MCP, as resources/subscribe or tools/list")
	f.StringVar(&q.args, "args", "", "the tool's or prompt's arguments, a JSON object (default: whether some may be allowed)")
	f.StringVar(&q.upstream, "upstream", "", "the Upstream that has it (default the Binding's, if it has one only, or the one whose prefix the name has)")
	f.StringArrayVar(&q.hints, "hint", nil, "what the server says of the tool, as readOnly=true; may be repeated")
	c.MarkFlagRequired("binding")
	return c
}

// request is what the flags ask.
func (q *question) request() (*outriggerv1.ExplainRequest, error) {
	req := &outriggerv1.ExplainRequest{
		Binding: q.binding, Method: q.method, Tool: q.call, Prompt: q.prompt, Resource: q.read, Upstream: q.upstream,
	}
	var err error
	if req.Principal, err = q.principal(); err != nil {
		return nil, err
	}
	if req.Arguments, err = jsonObject("args", q.args); err != nil {
		return nil, err
	}
	if req.Hints, err = parseHints(q.hints); err != nil {
		return nil, err
	}
	if q.call+q.prompt+q.read+q.method == "" {
		return nil, fmt.Errorf("give what is called: --call, --prompt, --read or --method")
	}
	return req, nil
}

// principal reads --as and what goes with it.
func (q *question) principal() (*outriggerv1.ExplainedPrincipal, error) {
	claims, err := jsonObject("claims", q.claims)
	if err != nil {
		return nil, err
	}
	p := &outriggerv1.ExplainedPrincipal{Groups: q.groups, Scopes: q.scopes, Claims: claims}
	issuer, subject, token := strings.Cut(q.as, "|")
	key, isKey := strings.CutPrefix(q.as, "key:")
	switch {
	case token:
		p.Issuer, p.Subject = issuer, subject
	case isKey:
		p.Key = key
	case strings.HasPrefix(q.as, "spiffe://"):
		p.SpiffeId = q.as
	case q.as != "anonymous":
		return nil, fmt.Errorf("--as %q is none of ISSUER|SUBJECT, key:NAME, spiffe://… and anonymous", q.as)
	}
	return p, nil
}

// jsonObject reads a flag's object, nil without any.
func jsonObject(flag, text string) (*structpb.Struct, error) {
	if text == "" {
		return nil, nil
	}
	s := &structpb.Struct{}
	if err := s.UnmarshalJSON([]byte(text)); err != nil {
		return nil, fmt.Errorf("--%s is not a JSON object: %s", flag, strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\u00a0", " "), "proto: "))
	}
	return s, nil
}

// parseHints reads NAME=true and NAME=false, nil without any.
func parseHints(pairs []string) (*outriggerv1.ToolHints, error) {
	if len(pairs) == 0 {
		return nil, nil
	}
	words, err := parseLabels(pairs)
	if err != nil {
		return nil, fmt.Errorf("--hint: %w", err)
	}
	h := &outriggerv1.ToolHints{}
	fields := map[string]**bool{
		"readOnly": &h.ReadOnly, "destructive": &h.Destructive, "idempotent": &h.Idempotent, "openWorld": &h.OpenWorld,
	}
	for name, word := range words {
		field, ok := fields[name]
		if !ok || word != "true" && word != "false" {
			return nil, fmt.Errorf("--hint %s=%s: expected readOnly, destructive, idempotent or openWorld, and true or false", name, word)
		}
		value := word == "true"
		*field = &value
	}
	return h, nil
}

func explain(c *cobra.Command, o *options, req *outriggerv1.ExplainRequest) error {
	client, err := o.client()
	if err != nil {
		return err
	}
	res, err := call(c.Context(), o, client.Explain, req)
	if err != nil {
		return err
	}
	if o.structured() {
		return write(c.OutOrStdout(), o.output, []explanation{toExplanation(res)}, true)
	}
	return writeExplanation(c.OutOrStdout(), res, req.Tool+req.Prompt+req.Resource != "")
}
