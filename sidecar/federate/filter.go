package federate

import (
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
)

// maxSubscriptions is how many resources and tasks one listen may name.
const maxSubscriptions = 1000

// The filter's members, with the notifications that they ask for and the kinds of list that those change.
var filters = []struct {
	name, notification string
	kinds              []kind
}{
	{"toolsListChanged", mcp.NotificationToolsChanged, []kind{tools}},
	{"promptsListChanged", mcp.NotificationPromptsChanged, []kind{prompts}},
	{"resourcesListChanged", mcp.NotificationResourcesChanged, []kind{resources, templates}},
}

// filter is what a listen asks for, or is granted.
type filter struct {
	lists []bool // by index in filters
	uris  []string
	tasks []string
}

// readFilter reads params.notifications, or what an acknowledgement grants.
func readFilter(raw []byte, params mcp.Span) filter {
	f, at := filter{lists: make([]bool, len(filters))}, rawjson.Find(raw, params, "notifications")
	for i := range filters {
		f.lists[i] = string(rawjson.Find(raw, at, filters[i].name).Of(raw)) == "true"
	}
	f.uris, f.tasks = texts(raw, rawjson.Find(raw, at, "resourceSubscriptions")), texts(raw, rawjson.Find(raw, at, "taskIds"))
	return f
}

// texts are the strings of an array.
func texts(raw []byte, array mcp.Span) (out []string) {
	if !rawjson.IsArray(array.Of(raw)) {
		return nil
	}
	for e := range rawjson.Elements(raw, array) {
		if text, ok := rawjson.Text(e.Of(raw)); ok {
			out = append(out, text)
		}
	}
	return out
}

// append appends the filter as an object.
func (f filter) append(b []byte) []byte {
	b = append(b, '{')
	comma := func() {
		if b[len(b)-1] != '{' {
			b = append(b, ',')
		}
	}
	for i, yes := range f.lists {
		if yes {
			comma()
			b = append(b, `"`+filters[i].name+`":true`...)
		}
	}
	for _, part := range []struct {
		name string
		of   []string
	}{{"resourceSubscriptions", f.uris}, {"taskIds", f.tasks}} {
		if len(part.of) == 0 {
			continue
		}
		comma()
		b = appendTexts(append(b, `"`+part.name+`":`...), part.of)
	}
	return append(b, '}')
}

// appendTexts appends an array of strings.
func appendTexts(b []byte, all []string) []byte {
	b = append(b, '[')
	for i, text := range all {
		if i > 0 {
			b = append(b, ',')
		}
		b = rawjson.AppendString(b, text)
	}
	return append(b, ']')
}

func (f filter) empty() bool {
	return !slices.Contains(f.lists, true) && len(f.uris) == 0 && len(f.tasks) == 0
}

// within is the part of f that was asked for, without what comes twice.
func (f filter) within(asked filter) filter {
	out := filter{lists: make([]bool, len(filters))}
	for i := range filters {
		out.lists[i] = f.lists[i] && asked.lists[i]
	}
	out.uris, out.tasks = common(asked.uris, f.uris), common(asked.tasks, f.tasks)
	return out
}

// common is what both have, in the order of the first.
func common(a, b []string) (out []string) {
	in := make(map[string]bool, len(b))
	for _, x := range b {
		in[x] = true
	}
	for _, x := range a {
		if in[x] {
			out = append(out, x)
			delete(in, x)
		}
	}
	return out
}

// covers reports whether a resource, or what it is part of, is among those of the filter.
func (f filter) covers(uri string) bool {
	for _, of := range f.uris {
		rest, ok := strings.CutPrefix(uri, of)
		if ok && (rest == "" || strings.ContainsRune("/?#", rune(rest[0])) || strings.HasSuffix(of, "/")) {
			return true
		}
	}
	return false
}

// tagged is a notification with a subscription id in its _meta, in place of the one it has.
func tagged(raw, id []byte) []byte {
	key := `"` + mcp.MetaKeySubscriptionID + `":`
	all := rawjson.Whole(raw)
	params := rawjson.Find(raw, all, "params")
	meta := rawjson.Find(raw, params, "_meta")
	switch at := rawjson.Find(raw, meta, mcp.MetaKeySubscriptionID); {
	case at.Present():
		return rawjson.Splice(raw, mcp.Edit{Span: at, With: id})
	case meta.Present():
		return rawjson.Insert(raw, meta, key+string(id))
	case params.Present():
		return rawjson.Insert(raw, params, `"_meta":{`+key+string(id)+`}`)
	}
	return rawjson.Insert(raw, all, `"params":{"_meta":{`+key+string(id)+`}}`)
}
