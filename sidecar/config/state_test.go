package config

import (
	"fmt"
	"strings"
	"testing"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

// script drives a state by hand; each line it returns is an action.
type script struct {
	t *testing.T
	s *state
}

func (c *script) step(e event) string {
	var lines []string
	for _, a := range c.s.step(e) {
		switch a := a.(type) {
		case subscribe:
			if kind := kindOf(a.typeURL); len(a.versions) == 0 && kind != "Upstream" && kind != "Binding" && kind != "Manifest" {
				continue // all others are asked for as well: too long for a line
			}
			lines = append(lines, fmt.Sprintf("subscribe %s %v", kindOf(a.typeURL), a.versions))
		case answer:
			what := "ack"
			if len(a.refusals) > 0 {
				what = "nack"
			}
			line := what + " " + kindOf(a.typeURL) + " " + a.nonce
			for _, r := range a.refusals {
				line += fmt.Sprintf(" %s@%s(%s)", r.Name, r.Version, r.Reason)
			}
			lines = append(lines, line)
		case apply:
			line := "apply " + a.config.Generation + " " + strings.Join(marks(a.config), " ")
			for _, m := range a.config.Missing {
				line += fmt.Sprintf(" -%s/%s(%s)%v", m.Kind, m.Name, m.Reason, m.Target.GetBindings())
			}
			lines = append(lines, line)
		case save:
			lines = append(lines, "save")
		case watch:
			lines = append(lines, fmt.Sprintf("watch %v", a.on))
		}
	}
	return strings.Join(lines, "; ")
}

// want drives one event and compares.
func (c *script) want(e event, want string) {
	c.t.Helper()
	if got := c.step(e); got != want {
		c.t.Errorf("%T %v\n got %s\nwant %s", e, e, got, want)
	}
}

// got is a response with resources whose versions are given, as bindings of an upstream u or as upstreams.
func got(nonce string, resources ...string) received {
	e := received{nonce: nonce, accepted: map[key]entry{}, refused: map[key]fault{}}
	for _, r := range resources {
		name, version, _ := strings.Cut(r, "@")
		var o resource.Object = bind(name, "/"+name+version, "u")
		if name == "u" {
			o = up("u", "http://"+version)
		}
		k := key{typeURLOf(o), name}
		e.typeURL = k.typeURL
		if bad, ok := strings.CutSuffix(version, "!"); ok {
			e.refused[k] = fault{version: bad, reason: "bad"}
			continue
		}
		e.accepted[k] = entry{version: version, object: o}
	}
	return e
}

// names is a manifest response.
func names(nonce, generation string, references ...string) manifested {
	m := &outriggerv1.Manifest{Name: node, Generation: generation}
	for _, r := range references {
		name, version, _ := strings.Cut(r, "@")
		typeURL := bindingType
		if name == "u" {
			typeURL = upstreamType
		}
		m.References = append(m.References, &outriggerv1.Reference{TypeUrl: typeURL, Name: name, Version: version})
	}
	return manifested{nonce: nonce, manifest: m}
}

func newScript(t *testing.T) *script { return &script{t: t, s: newState()} }

// policyNames is a manifest of policies and tenants, as "KIND/NAME@VERSION".
func policyNames(nonce, generation string, references ...string) manifested {
	m := &outriggerv1.Manifest{Name: node, Generation: generation}
	for _, r := range references {
		kind, rest, _ := strings.Cut(r, "/")
		name, version, _ := strings.Cut(rest, "@")
		m.References = append(m.References, &outriggerv1.Reference{TypeUrl: resource.TypeURL(kind), Name: name, Version: version})
	}
	return manifested{nonce: nonce, manifest: m}
}

// gotPolicy is a response with one policy for binding b; a bad one could be read and not be checked.
func gotPolicy(nonce, version string, bad bool, tenants ...string) received {
	p := &outriggerv1.Policy{
		Name:   "p",
		Target: &outriggerv1.PolicyTarget{Bindings: []string{"b"}},
		Rules:  []*outriggerv1.Rule{{Action: outriggerv1.Action_ACTION_DENY, Tenants: tenants}},
	}
	k := key{typeURLOf(p), "p"}
	e := received{typeURL: k.typeURL, nonce: nonce, accepted: map[key]entry{}, refused: map[key]fault{}}
	if bad {
		e.refused[k] = fault{version: version, reason: "bad", target: targetOf(p)}
	} else {
		e.accepted[k] = entry{version: version, object: p}
	}
	return e
}

func TestAPolicyThatCannotRunIsMissed(t *testing.T) {
	c := newScript(t)
	c.step(connected{})
	c.want(gotPolicy("1", "1", true), "nack Policy 1 p@1(bad)")
	c.want(policyNames("2", "g1", "Policy/p@1"), "watch false; apply g1  -Policy/p(bad)[b]")
	c.want(applied{}, "save; nack Manifest 2 p@1(bad)")
	c.want(gotPolicy("3", "2", false), "ack Policy 3")
	c.want(policyNames("4", "g2", "Policy/p@2"), "watch false; apply g2 Policy/p=")
	c.want(applied{}, "save; ack Manifest 4")
	// The last good form stands in for a bad one: nothing is missing.
	c.want(gotPolicy("5", "3", true), "nack Policy 5 p@3(bad)")
	c.want(policyNames("6", "g3", "Policy/p@3"), "watch false; apply g3 Policy/p=")
}

func TestATenantThatNeverComesIsMissedAndSoIsThePolicyThatNamesIt(t *testing.T) {
	c := newScript(t)
	c.step(connected{})
	c.want(gotPolicy("1", "1", false, "acme"), "ack Policy 1")
	c.want(policyNames("2", "g1", "Policy/p@1", "Tenant/acme@1"), "watch true")
	c.want(overdue{}, "watch false; apply g1  -Policy/p(spec.rules[0].tenants[0]: its Tenant \"acme\" was refused: did not arrive within 15s)[b] "+
		"-Tenant/acme(did not arrive within 15s)[]")
}

func TestStateInOrder(t *testing.T) {
	c := newScript(t)
	c.want(connected{}, "subscribe Upstream map[]; subscribe Binding map[]; subscribe Manifest map[]")
	c.want(got("1", "u@1"), "ack Upstream 1")
	c.want(got("2", "b@1"), "ack Binding 2")
	c.want(names("3", "g1", "u@1", "b@1"), "watch false; apply g1 Upstream/u=http://1 Binding/b=/b1")
	c.want(applied{}, "save; ack Manifest 3")
	c.want(disconnected{}, "save")
	c.want(connected{}, "subscribe Upstream map[u:1]; subscribe Binding map[b:1]; subscribe Manifest map[node-1:g1]")
	c.want(manifested{nonce: "4"}, "ack Manifest 4")
	c.want(overdue{}, "")
}

func TestStateWithTheManifestFirst(t *testing.T) {
	c := newScript(t)
	c.want(names("1", "g1", "u@1", "b@1"), "watch true")
	c.want(got("2", "u@1"), "ack Upstream 2")
	c.want(got("3", "b@1"), "ack Binding 3; watch false; apply g1 Upstream/u=http://1 Binding/b=/b1")
	c.want(applied{}, "save; ack Manifest 1")
	// The next version of a resource waits for the manifest that names it.
	c.want(got("4", "b@2"), "ack Binding 4")
	c.want(names("5", "g2", "u@1", "b@2"), "watch false; apply g2 Upstream/u=http://1 Binding/b=/b2")
	c.want(applied{}, "save; ack Manifest 5")
}

func TestStateRefusesWithoutStopping(t *testing.T) {
	c := newScript(t)
	c.step(got("1", "u@1"))
	c.step(got("2", "b@1", "c@1"))
	c.step(names("3", "g1", "u@1", "b@1", "c@1"))
	c.want(applied{}, "save; ack Manifest 3")
	c.want(got("4", "b@2!", "c@2"), "nack Binding 4 b@2(bad)")
	c.want(names("5", "g2", "u@1", "b@2", "c@2"), "watch false; apply g2 Upstream/u=http://1 Binding/b=/b1 Binding/c=/c2")
	c.want(applied{refusals: []Refusal{{"Binding", "c", "busy"}}}, "save; nack Manifest 5 b@2(bad) c@2(busy)")
	c.want(connected{}, "subscribe Upstream map[u:1]; subscribe Binding map[b:1 c:1]; subscribe Manifest map[]")
	wantEqual(t, "c runs", c.s.running[key{bindingType, "c"}].version, "1")
	// Sent again and still bad.
	c.want(got("6", "b@2!", "c@2"), "nack Binding 6 b@2(bad)")
	c.want(names("7", "g2", "u@1", "b@2", "c@2"), "watch false; apply g2 Upstream/u=http://1 Binding/b=/b1 Binding/c=/c2")
	c.want(applied{}, "save; nack Manifest 7 b@2(bad)")
	// Nothing can have changed: answered without another try.
	c.want(names("8", "g2", "u@1", "b@2", "c@2"), "watch false; save; nack Manifest 8 b@2(bad)")
}

func TestStateWhenTheStreamBreaksWhileWaiting(t *testing.T) {
	c := newScript(t)
	c.step(got("1", "u@1"))
	c.want(names("2", "g1", "u@1", "b@1"), "watch true")
	c.want(disconnected{}, "watch false")
	c.want(overdue{}, "")
	c.want(connected{}, "subscribe Upstream map[u:1]; subscribe Binding map[]; subscribe Manifest map[]")
	c.want(got("1", "b@1"), "ack Binding 1")
	c.want(names("2", "g1", "u@1", "b@1"), "watch false; apply g1 Upstream/u=http://1 Binding/b=/b1")
}

func TestStateWithAnAbsentResource(t *testing.T) {
	c := newScript(t)
	c.step(got("1", "u@1"))
	c.step(got("2", "b@1"))
	c.want(names("3", "g1", "u@1", "b@1", "c@1"), "watch true")
	c.want(overdue{}, "watch false; apply g1 Upstream/u=http://1 Binding/b=/b1")
	c.want(applied{}, "save; nack Manifest 3 c@1(did not arrive within 15s)")
	c.want(got("4", "c@1"), "ack Binding 4; watch false; apply g1 Upstream/u=http://1 Binding/b=/b1 Binding/c=/c1")
	c.want(applied{}, "save; ack Manifest 3")
}

func TestStateRestoredFromDisk(t *testing.T) {
	c := newScript(t)
	entries := map[key]entry{}
	for k, e := range got("", "u@1").accepted {
		entries[k] = e
	}
	for k, e := range got("", "b@1", "c@1").accepted {
		entries[k] = e
	}
	m := names("", "g1", "u@1", "b@1", "c@2").manifest // c@2 was refused
	c.want(restored{manifest: m, entries: entries}, "watch false; apply g1 Upstream/u=http://1 Binding/b=/b1 Binding/c=/c1")
	c.want(applied{}, "")
	c.want(connected{}, "subscribe Upstream map[u:1]; subscribe Binding map[b:1 c:1]; subscribe Manifest map[]")
	c.want(got("1", "c@2"), "ack Binding 1; watch false; apply g1 Upstream/u=http://1 Binding/b=/b1 Binding/c=/c2")
	c.want(applied{}, "")
	c.want(names("2", "g1", "u@1", "b@1", "c@2"), "watch false; save; ack Manifest 2")
}

// TestEveryPhaseTakesEveryEvent holds that no order of events is a panic or leaves a manifest applying.
func TestEveryPhaseTakesEveryEvent(t *testing.T) {
	events := []event{
		connected{}, disconnected{}, overdue{}, manifested{nonce: "n"}, got("1", "u@1"), got("2", "b@1", "c@2!"), got("3", "b@2"),
		names("4", "g1", "u@1", "b@1"), names("5", "g2", "u@1", "b@2", "c@2"), names("6", "g3"),
		received{typeURL: bindingType, nonce: "7", removed: []key{{bindingType, "b"}}},
		received{typeURL: "unknown", nonce: "8"},
	}
	var walk func(path []int)
	walk = func(path []int) {
		s := newState()
		for _, i := range path {
			for _, a := range s.step(events[i]) {
				if _, ok := a.(apply); ok {
					s.step(applied{refusals: []Refusal{{"Binding", "b", "busy"}, {"Binding", "zzz", "not asked"}}})
				}
			}
		}
		if s.phase == applying || (s.phase == waiting) != (s.wanted != nil && len(s.missing()) > 0 && s.phase != settled) {
			t.Errorf("after %v: phase %d, missing %v", path, s.phase, s.missing())
		}
		if len(path) < 4 {
			for i := range events {
				walk(append(path[:len(path):len(path)], i))
			}
		}
	}
	walk(nil)
}
