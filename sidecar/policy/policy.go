// Package policy decides what a principal may call, and so what lists show it.
//
// The Policies that target a binding are compiled into a Set when configuration arrives. A Set answers for one call at a
// time, from the request alone: it does no I/O, and is safe for concurrent use. The same rules decide a call and filter a
// list, so that what is listed is what may be called.
//
// The conditions on the caller are looked at once for each caller, those on what is called once for each name and class of
// callers; what an expression says of arguments and the time is all that is left for a call. Not here: who calls (package
// identity), and what expressions mean (proto/expression).
package policy

import (
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/identity"
)

// Subject is the sort of thing that a call is about.
type Subject uint8

const (
	None     Subject = iota // a method without one
	Tool                    // tools/call; an entry of tools/list
	Prompt                  // prompts/get, completion/complete of one; an entry of prompts/list
	Resource                // resources/read, subscribe, completion/complete of one; an entry of resources and templates lists
)

// Request is one call, or one entry of a list.
type Request struct {
	Principal *identity.Principal
	Method    string // of an entry of a list: that of its call, tools/call, prompts/get or resources/read
	Subject   Subject
	Name      []byte // of the tool or prompt, or the URI, as the client has it
	Upstream  string // the Upstream that has it; the binding's only one, or empty where that is not known
	// Arguments is the raw JSON object of a tool's or prompt's arguments, nil for none. List does not look at it.
	Arguments []byte
	// Hints are the tool's annotations; nil where they are not known: then rules see what MCP takes for the default.
	Hints *Hints
	Time  time.Time
}

// Hints are what a server says of its own tool (schema: ToolAnnotations), with MCP's defaults filled in.
type Hints struct{ ReadOnly, Destructive, Idempotent, OpenWorld bool }

// Decision is what became of a Request.
type Decision struct {
	Allowed bool
	// Policy and Rule decided; both are empty where none did. Without a Rule the Policy refused what it does not allow: it is
	// final, or for some upstreams while which has the call is not known.
	Policy, Rule string
	// Live reports whether arguments or the time had a part in it: it may be another for the next call of the same caller and
	// name.
	Live bool
	// MissingScopes are all the scopes that the caller would need beside those it has, when nothing else is lacking.
	MissingScopes []string
	// Shadow is the audit-only Policy that would have refused what is allowed, and the rule; empty where none would. Without a
	// rule it is that the Policy does not allow it.
	ShadowPolicy, ShadowRule string
}
