package config

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

// key names a resource, or the manifest.
type key struct{ typeURL, name string }

func (k key) compare(other key) int {
	return cmp.Or(cmp.Compare(k.typeURL, other.typeURL), cmp.Compare(k.name, other.name))
}

// entry is one form of a resource that is well formed by itself.
type entry struct {
	version string
	value   []byte
	object  resource.Object
}

// fault is why one version of a resource does not run.
type fault struct {
	version, reason string
	target          *outriggerv1.PolicyTarget // of a Policy that could be read, else nil
}

// absentAfter is how long a manifest waits for what it names: the servers of xDS do not say that something is absent.
const absentAfter = 15 * time.Second

// phase is where the wanted manifest stands:
//
//	         manifest          all held or refused          applied
//	settled ──────────▶ waiting ──────────────────▶ applying ───────▶ settled
//	   ▲                 │    ▲
//	   └──disconnected───┘    └─ overdue: what is absent counts as refused
//
// A settled manifest is applied again when something that it had to do without arrives after all.
type phase uint8

const (
	settled phase = iota
	waiting
	applying
)

// state is what a sidecar knows of its configuration. step is its only way to change; it does no I/O and knows no time.
type state struct {
	phase  phase
	wanted *outriggerv1.Manifest // newest; nil before the first
	nonce  string                // of the response that brought it, "" when that stream is gone
	tried  string                // what was last applied, to see whether another try could differ
	retry  bool                  // whether the next manifest is tried even if not: the stream is new

	held    map[key]entry // newest well formed version of each
	refused map[key]fault // versions that were not well formed, or never came
	faults  map[key]fault // versions that were, but could not run in the last try

	runs     *outriggerv1.Manifest // that was last applied, nil before the first
	running  map[key]entry         // what runs of it
	current  bool                  // whether a control plane has confirmed on this stream that this should run
	accepted string                // version of the manifest that runs without a fault, "" if it is not so
	next     map[key]entry         // what runs if the target takes everything; set while applying
}

func newState() *state {
	return &state{
		held: map[key]entry{}, refused: map[key]fault{}, faults: map[key]fault{}, running: map[key]entry{},
	}
}

// Events.
type (
	event any

	// restored is the configuration on disk, at start.
	restored struct {
		manifest *outriggerv1.Manifest
		entries  map[key]entry
	}
	// connected is a new stream, disconnected its end.
	connected    struct{}
	disconnected struct{}
	// received is a response of one type but the manifest's.
	received struct {
		typeURL, nonce string
		accepted       map[key]entry
		refused        map[key]fault
		removed        []key
	}
	// manifested is a response that has the manifest, or none when it has not changed.
	manifested struct {
		nonce    string
		manifest *outriggerv1.Manifest
	}
	// overdue is that a manifest has been waiting for too long.
	overdue struct{}
	// applied is what the target answered.
	applied struct{ refusals []Refusal }
)

// Actions, to be performed in order.
type (
	action any

	// subscribe opens a type on a new stream, offering the versions that are here.
	subscribe struct {
		typeURL  string
		versions map[string]string
	}
	// answer ACKs a response, or NACKs it when something is refused.
	answer struct {
		typeURL, nonce string
		refusals       []*outriggerv1.Refusal
	}
	// apply hands a configuration to the target, whose answer is the next event.
	apply struct{ config *Config }
	// save writes what runs to disk.
	save struct{ config *outriggerv1.SavedConfig }
	// watch starts the clock that leads to overdue, or stops it.
	watch struct{ on bool }
)

// subscribed lists the types in the order in which they are asked for and so, as a rule, come.
var subscribed = func() (urls []string) {
	for _, kind := range resource.Kinds() {
		urls = append(urls, resource.TypeURL(kind))
	}
	return append(urls, resource.ManifestTypeURL)
}()

// step takes one event and returns what to do about it.
func (s *state) step(e event) []action {
	switch e := e.(type) {
	case restored:
		s.wanted, s.running, s.phase = e.manifest, e.entries, waiting
		for k, entry := range e.entries {
			s.held[k] = entry
		}
		for _, k := range s.missing() {
			s.refused[k] = fault{version: s.version(k), reason: "refused before the last restart"}
		}
		return s.settle()
	case connected:
		return s.connect()
	case disconnected:
		return s.disconnect()
	case received:
		return append([]action{s.receive(e)}, s.settle()...)
	case manifested:
		return s.manifest(e)
	case overdue:
		if s.phase != waiting {
			return nil // it was settled just before
		}
		for _, k := range s.missing() {
			s.refused[k] = fault{version: s.version(k), reason: fmt.Sprintf("did not arrive within %v", absentAfter)}
		}
		return s.settle()
	case applied:
		return s.finish(e)
	}
	return nil
}

// connect subscribes to every type. What had faults is offered as it runs, so that it comes again and is tried again.
func (s *state) connect() []action {
	s.retry = true
	var out []action
	for _, typeURL := range subscribed {
		versions := map[string]string{}
		for k, e := range s.held {
			if _, bad := s.faults[k]; bad {
				e = s.running[k]
			}
			if k.typeURL == typeURL && e.version != "" {
				versions[k.name] = e.version
			}
		}
		if typeURL == resource.ManifestTypeURL && s.accepted != "" {
			versions[s.wanted.Name] = s.accepted
		}
		out = append(out, subscribe{typeURL: typeURL, versions: versions})
	}
	return out
}

// disconnect forgets what only the stream could finish: a manifest that waits comes again on the next one. What is on
// disk becomes as old as the stream's end.
func (s *state) disconnect() (out []action) {
	s.nonce = ""
	if s.phase == waiting {
		s.phase, s.wanted = settled, nil
		out = append(out, watch{on: false})
	}
	if s.current {
		out = append(out, save{config: s.saved()})
	}
	s.current = false
	return out
}

// receive takes a response's resources.
func (s *state) receive(e received) answer {
	for k, entry := range e.accepted {
		s.held[k] = entry
		delete(s.refused, k)
	}
	for k, f := range e.refused {
		s.refused[k] = f
	}
	for _, k := range e.removed {
		delete(s.held, k)
		delete(s.refused, k)
	}
	return answer{typeURL: e.typeURL, nonce: e.nonce, refusals: refusals(e.refused)}
}

// manifest takes a new manifest, or confirms the one that is wanted.
func (s *state) manifest(e manifested) []action {
	s.nonce = e.nonce
	maps.DeleteFunc(s.refused, func(k key, _ fault) bool { return k.typeURL == resource.ManifestTypeURL })
	if e.manifest == nil {
		s.nonce, s.current = "", s.accepted != ""
		return []action{answer{typeURL: resource.ManifestTypeURL, nonce: e.nonce}}
	}
	s.wanted, s.phase, s.accepted = e.manifest, waiting, ""
	if s.retry && len(s.faults) > 0 {
		s.tried = ""
	}
	s.retry = false
	if out := s.settle(); len(out) > 0 {
		return out
	}
	return []action{watch{on: true}}
}

// settle moves on when every reference of the wanted manifest is held or refused.
func (s *state) settle() []action {
	if s.wanted == nil || s.phase == applying || len(s.missing()) > 0 {
		return nil
	}
	try := s.fingerprint()
	if try == s.tried {
		if s.phase == settled {
			return nil
		}
		s.phase, s.current, s.runs = settled, true, s.wanted // the same as runs, sent again
		return append([]action{watch{on: false}, save{config: s.saved()}}, s.answerManifest()...)
	}
	s.tried, s.phase = try, applying
	s.next, s.faults = s.compose()
	config := configOf(s.wanted.Generation, s.next)
	config.Missing = s.without(s.next)
	return []action{watch{on: false}, apply{config: config}}
}

// finish keeps what the target took: what it refused goes on in the form in which it ran.
func (s *state) finish(e applied) []action {
	for _, r := range e.refusals {
		k := key{resource.TypeURL(r.Kind), r.Name}
		if _, ok := s.next[k]; !ok {
			continue // nothing that it was asked to run
		}
		s.faults[k] = fault{version: s.version(k), reason: r.Reason}
		if old, ok := s.running[k]; ok {
			s.next[k] = old
		} else {
			delete(s.next, k)
		}
	}
	s.runs, s.running, s.next, s.phase = s.wanted, s.next, nil, settled
	out := s.answerManifest()
	if s.nonce == "" {
		return out // from disk: it is there already, and as old as it is
	}
	s.current = true
	return append([]action{save{config: s.saved()}}, out...)
}

// answerManifest says on the stream that brought it how the wanted manifest went, if that stream is still there.
func (s *state) answerManifest() []action {
	faults := s.wantedFaults()
	s.accepted = ""
	if len(faults) == 0 {
		s.accepted = s.wanted.Generation // as a manifest's version is
	}
	if s.nonce == "" {
		return nil
	}
	return []action{answer{typeURL: resource.ManifestTypeURL, nonce: s.nonce, refusals: refusals(faults)}}
}

// missing lists what the wanted manifest names that has neither come nor been refused.
func (s *state) missing() []key {
	var out []key
	for _, r := range s.wanted.GetReferences() {
		k := key{r.TypeUrl, r.Name}
		if s.held[k].version != r.Version && s.refused[k].version != r.Version {
			out = append(out, k)
		}
	}
	return out
}

// version is the wanted version of a resource.
func (s *state) version(k key) string {
	for _, r := range s.wanted.GetReferences() {
		if k == (key{r.TypeUrl, r.Name}) {
			return r.Version
		}
	}
	return s.next[k].version // carried along by what fell back to an older form
}

// wantedFaults is why each resource of the wanted manifest that does not run as wanted does not.
func (s *state) wantedFaults() map[key]fault {
	out := map[key]fault{}
	for _, r := range s.wanted.GetReferences() {
		k := key{r.TypeUrl, r.Name}
		if f, ok := s.faults[k]; ok {
			out[k] = f
		} else if f, ok := s.refused[k]; ok && f.version == r.Version {
			out[k] = f
		}
	}
	return out
}

// fingerprint is the same for two tries that could not end differently.
func (s *state) fingerprint() string {
	var b strings.Builder
	b.WriteString(s.wanted.Generation)
	for _, r := range s.wanted.References {
		k := key{r.TypeUrl, r.Name}
		fmt.Fprintf(&b, "\n%s %s %s %v", r.TypeUrl, r.Name, r.Version, s.held[k].version == r.Version)
	}
	return b.String()
}

// saved is what runs, as kept on disk.
func (s *state) saved() *outriggerv1.SavedConfig {
	out := &outriggerv1.SavedConfig{Manifest: s.runs}
	for _, k := range slices.SortedFunc(keysOf(s.running), key.compare) {
		e := s.running[k]
		out.Resources = append(out.Resources, &outriggerv1.SavedResource{
			TypeUrl: k.typeURL, Name: k.name, Version: e.version, Value: e.value,
		})
	}
	return out
}

// refusals is faults as they travel, in order.
func refusals(faults map[key]fault) []*outriggerv1.Refusal {
	var out []*outriggerv1.Refusal
	for _, k := range slices.SortedFunc(keysOf(faults), key.compare) {
		f := faults[k]
		out = append(out, &outriggerv1.Refusal{TypeUrl: k.typeURL, Name: k.name, Version: f.version, Reason: f.reason})
	}
	return out
}
