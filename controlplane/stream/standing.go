package stream

import (
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/compile"
	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// standing is what a sidecar does with one resource of its view. The zero state is not used.
type standing struct {
	state  outriggerv1.State
	reason string
	since  time.Time
}

// become is a standing in another state, or the same one when it is in that state already.
func (s standing) become(state outriggerv1.State, reason string, now time.Time) standing {
	if s.state == state && s.reason == reason {
		return s
	}
	return standing{state: state, reason: reason, since: now}
}

// key names a resource among those of all types.
type key struct{ typeURL, name string }

func keyOf(e *compile.Encoded) key { return key{e.TypeURL, e.Name} }

// index is resources by key.
func index(resources []*compile.Encoded) map[key]int {
	byKey := make(map[key]int, len(resources))
	for i, e := range resources {
		byKey[keyOf(e)] = i
	}
	return byKey
}

// carry returns the standings of a new view: what is in the old one at the same version stands as before, the rest is
// behind from now on.
func carry(old []*compile.Encoded, stood []standing, view []*compile.Encoded, now time.Time) []standing {
	before := index(old)
	stands := make([]standing, len(view))
	for i, e := range view {
		if j, ok := before[keyOf(e)]; ok && old[j].Version == e.Version {
			stands[i] = stood[j]
		} else {
			stands[i] = standing{state: outriggerv1.State_STATE_BEHIND, since: now}
		}
	}
	return stands
}

// answer is what a sidecar's ACK or NACK says about the resources that it answers for.
type answer struct {
	offered []*compile.Encoded
	refused map[key]refusal // by key
	runs    bool            // whether what is offered and not refused runs
}

// refusal is why a resource does not run, and at which version; no version is the one offered.
type refusal struct{ version, reason string }

// settle returns the standings of a view after an answer. The answer may be about an earlier view: what has changed
// since then stands as it did.
func settle(view []*compile.Encoded, stands []standing, a answer, now time.Time) []standing {
	offered := index(a.offered)
	settled := make([]standing, len(stands))
	for i, e := range view {
		settled[i] = stands[i]
		j, ok := offered[keyOf(e)]
		if !ok || a.offered[j].Version != e.Version {
			continue
		}
		r, no := a.refused[keyOf(e)]
		switch {
		case no && (r.version == "" || r.version == e.Version):
			settled[i] = stands[i].become(outriggerv1.State_STATE_REFUSED, r.reason, now)
		case !no && a.runs:
			settled[i] = stands[i].become(outriggerv1.State_STATE_RUNNING, "", now)
		}
	}
	return settled
}

// named collects the resources that a NACK's details refuse.
func named(refusals []*outriggerv1.Refusal) map[key]refusal {
	byKey := make(map[key]refusal, len(refusals))
	for _, r := range refusals {
		byKey[key{r.TypeUrl, r.Name}] = refusal{version: r.Version, reason: clip(r.Reason)}
	}
	return byKey
}

// unexplained refuses every one of the resources with one reason, for a NACK that names none.
func unexplained(resources []*compile.Encoded, reason string) map[key]refusal {
	byKey := make(map[key]refusal, len(resources))
	for _, e := range resources {
		byKey[keyOf(e)] = refusal{version: e.Version, reason: clip(reason)}
	}
	return byKey
}

// clip bounds a stranger's text and keeps it valid UTF-8.
func clip(s string) string {
	if len(s) > maxReason {
		s = s[:maxReason]
	}
	return strings.ToValidUTF8(s, "")
}
