package tostateless

import (
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
)

// extensionTasks is of the stateless wire only: its methods and its results have no form in a session.
const extensionTasks = "io.modelcontextprotocol/tasks"

// adapted is what a client declared in initialize, as a stateless server is told: without what the client's version does
// not have, or has in another form (2026-07-28 names them alike otherwise).
func adapted(raw []byte, capabilities mcp.Span, version string) []byte {
	if !rawjson.IsObject(capabilities.Of(raw)) {
		return []byte("{}")
	}
	b, _ := rawjson.Rewrite(nil, raw, capabilities, func(m rawjson.Member) (with []byte, keep bool) {
		is := rawjson.IsObject(m.Value.Of(raw))
		switch string(m.Name) {
		case "tasks":
			return nil, false
		case "extensions":
			return withoutTasks(raw, m.Value), is
		case "roots":
			return []byte("{}"), is // listChanged has no meaning any more
		case "sampling":
			if version < mcp.Version20251125 {
				with = []byte("{}")
			}
			return with, is
		case "elicitation":
			if version < mcp.Version20251125 {
				with = []byte(`{"form":{}}`)
			}
			return with, is && version >= mcp.Version20250618
		}
		return nil, true
	})
	return b
}

// withoutTasks is a map of extensions without the tasks extension.
func withoutTasks(raw []byte, extensions mcp.Span) []byte {
	if !rawjson.IsObject(extensions.Of(raw)) {
		return nil
	}
	b, _ := rawjson.Rewrite(nil, raw, extensions, func(m rawjson.Member) ([]byte, bool) {
		return nil, string(m.Name) != extensionTasks
	})
	return b
}

// declared is what a server may ask a client for.
type declared struct{ form, url, sampling, roots bool }

func declaredBy(adapted []byte) (d declared) {
	has := func(path ...string) bool {
		return rawjson.IsObject(rawjson.Find(adapted, rawjson.Whole(adapted), path...).Of(adapted))
	}
	d.sampling, d.roots, d.url = has("sampling"), has("roots"), has("elicitation", "url")
	d.form = has("elicitation", "form") || has("elicitation") && !d.url // an empty object means forms
	return d
}

// offered is what a server has, as far as a session needs to know.
type offered struct {
	logging, subscribe bool
	lists              []bool // by index in listKinds: whether it tells of changes
}

func offeredBy(discover []byte) offered {
	at := rawjson.Find(discover, rawjson.Whole(discover), "capabilities")
	is := func(path ...string) bool { return string(rawjson.Find(discover, at, path...).Of(discover)) == "true" }
	o := offered{
		logging:   rawjson.IsObject(rawjson.Find(discover, at, "logging").Of(discover)),
		subscribe: is("resources", "subscribe"),
	}
	for _, k := range listKinds {
		o.lists = append(o.lists, is(k.capability, "listChanged"))
	}
	return o
}

// pushes reports whether the server ever says something outside of calls.
func (o offered) pushes() bool { return o.subscribe || o.listsChange() }

func (o offered) listsChange() bool {
	for _, yes := range o.lists {
		if yes {
			return true
		}
	}
	return false
}

// legacyCapabilities is what a server declared in discovery as InitializeResult has it: the same, but for tasks.
func legacyCapabilities(raw []byte, capabilities mcp.Span) []byte {
	if !rawjson.IsObject(capabilities.Of(raw)) {
		return []byte("{}")
	}
	b, _ := rawjson.Rewrite(nil, raw, capabilities, func(m rawjson.Member) (with []byte, keep bool) {
		if string(m.Name) == "extensions" {
			with = withoutTasks(raw, m.Value)
		}
		return with, string(m.Name) != "tasks"
	})
	return b
}
