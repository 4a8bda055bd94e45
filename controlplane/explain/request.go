package explain

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/policy"
)

// subjects are what methods are about; a method that is not here has no subject.
var subjects = map[string][]policy.Subject{
	mcp.MethodToolsCall:          {policy.Tool},
	mcp.MethodPromptsGet:         {policy.Prompt},
	mcp.MethodResourcesRead:      {policy.Resource},
	mcp.MethodResourcesSubscribe: {policy.Resource},
	mcp.MethodComplete:           {policy.Prompt, policy.Resource},
}

// fields are how a request names a subject.
var fields = [4]string{policy.Tool: "tool", policy.Prompt: "prompt", policy.Resource: "resource"}

// methods are what calls a subject, unless the request says so.
var methods = [4]string{policy.Tool: mcp.MethodToolsCall, policy.Prompt: mcp.MethodPromptsGet, policy.Resource: mcp.MethodResourcesRead}

// request is the call as rules see it, without its caller and time.
func (f *fleet) request(req *outriggerv1.ExplainRequest) (r *policy.Request, mistakes resource.Errors) {
	r = &policy.Request{Method: req.GetMethod(), Upstream: req.GetUpstream(), Hints: hintsOf(req.GetHints())}
	add := func(path, format string, args ...any) {
		mistakes = append(mistakes, resource.Error{Path: path, Message: fmt.Sprintf(format, args...)})
	}
	for subject, name := range [4]string{policy.Tool: req.GetTool(), policy.Prompt: req.GetPrompt(), policy.Resource: req.GetResource()} {
		if name == "" {
			continue
		}
		if r.Subject != policy.None {
			add(fields[subject], "expected only one of tool, prompt and resource")
		}
		r.Subject, r.Name = policy.Subject(subject), []byte(name)
	}
	r.Method = cmp.Or(r.Method, methods[r.Subject])
	switch about, ok := subjects[r.Method]; {
	case r.Method == "":
		add("method", "required without tool, prompt and resource")
	case ok && r.Subject == policy.None:
		add(fields[about[0]], "required: %s is about one", r.Method)
	case r.Subject != policy.None && !slices.Contains(about, r.Subject):
		add(fields[r.Subject], "%s is not about one", r.Method)
	}
	if req.Hints != nil && r.Subject != policy.Tool {
		add("hints", "they are of tools")
	}
	if req.Arguments != nil && r.Subject != policy.Tool && r.Subject != policy.Prompt {
		add("arguments", "they are of tools and prompts")
	}
	if named := f.upstreams(); r.Upstream != "" && !slices.Contains(named, r.Upstream) {
		add("upstream", "Binding/%s has no Upstream named %q, expected one of %s", f.binding.GetName(), r.Upstream, strings.Join(named, ", "))
	}
	r.Upstream = cmp.Or(r.Upstream, f.prefixed(r))
	if req.Arguments != nil {
		r.Arguments, _ = json.Marshal(req.Arguments.AsMap()) // it came as JSON, or as what JSON has
	}
	return r, mistakes
}

// upstreams are the names of those that the binding has.
func (f *fleet) upstreams() (names []string) {
	for _, u := range f.binding.GetUpstreams() {
		names = append(names, u.GetName())
	}
	return names
}

// prefixed is the Upstream to which a tool's or prompt's name leads by its prefix, where every name of the binding has one.
func (f *fleet) prefixed(r *policy.Request) (found string) {
	b := resource.WithDefaults(f.binding)
	if b.GetNames().GetPrefix() != outriggerv1.Prefix_PREFIX_ALWAYS || r.Subject != policy.Tool && r.Subject != policy.Prompt {
		return ""
	}
	for _, u := range b.GetUpstreams() {
		if !strings.HasPrefix(string(r.Name), u.GetPrefix()+"_") {
			continue
		}
		if found != "" {
			return "" // either: only lists could tell
		}
		found = u.GetName()
	}
	return found
}

// hintsOf are a tool's annotations with MCP's defaults (schema: ToolAnnotations); nil without any.
func hintsOf(h *outriggerv1.ToolHints) *policy.Hints {
	if h == nil {
		return nil
	}
	out := &policy.Hints{ReadOnly: h.GetReadOnly(), Destructive: true, Idempotent: h.GetIdempotent(), OpenWorld: true}
	if h.Destructive != nil {
		out.Destructive = *h.Destructive
	}
	if h.OpenWorld != nil {
		out.OpenWorld = *h.OpenWorld
	}
	return out
}
