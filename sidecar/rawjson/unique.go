package rawjson

import "github.com/outrigger-mesh/outrigger/sidecar/mcp"

// fewMembers is how many members of an object are compared with each other; more are looked up in a map.
const fewMembers = 16

// Unique reports whether no object in a value has a name twice, by what the names stand for: two readers could see two
// different values otherwise (RFC 8259, section 4). An absent value has none.
func Unique(raw []byte, value mcp.Span) bool {
	switch text := value.Of(raw); {
	case IsArray(text):
		for e := range Elements(raw, value) {
			if !Unique(raw, e) {
				return false
			}
		}
	case IsObject(text):
		return uniqueMembers(raw, value)
	}
	return true
}

func uniqueMembers(raw []byte, object mcp.Span) bool {
	var few [fewMembers][]byte
	var many map[string]bool
	n := 0
	for m := range Members(raw, object) {
		if !Unique(raw, m.Value) {
			return false
		}
		if n < fewMembers {
			for _, name := range few[:n] {
				if string(name) == string(m.Name) {
					return false
				}
			}
			few[n] = m.Name
			n++
			continue
		}
		if many == nil {
			many = make(map[string]bool)
			for _, name := range few {
				many[string(name)] = true
			}
		}
		if many[string(m.Name)] {
			return false
		}
		many[string(m.Name)] = true
	}
	return true
}
