package stream

import (
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/compile"
	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

func TestEveryPhaseWithEveryEvent(t *testing.T) {
	old, new := &offer{index: 0}, &offer{index: 1}
	at := func(p phase) exchange { return exchange{phase: p, nonce: "7", offer: old} }
	pushed := exchange{phase: sent, nonce: "8", offer: new}
	for _, tc := range []struct {
		name   string
		from   exchange
		event  event
		to     exchange
		counts bool
	}{
		{"idle, push", exchange{}, event{kind: push, nonce: "8", offer: new}, pushed, true},
		{"idle, ack", exchange{}, event{kind: ack, nonce: "7"}, exchange{}, false},
		{"idle, ack without a nonce", exchange{}, event{kind: ack}, exchange{}, false},
		{"idle, nack", exchange{}, event{kind: nack, nonce: "7"}, exchange{}, false},
		{"sent, push", at(sent), event{kind: push, nonce: "8", offer: new}, pushed, true},
		{"sent, ack", at(sent), event{kind: ack, nonce: "7"}, at(current), true},
		{"sent, ack of an older push", at(sent), event{kind: ack, nonce: "6"}, at(sent), false},
		{"sent, nack", at(sent), event{kind: nack, nonce: "7"}, at(refused), true},
		{"sent, nack of an older push", at(sent), event{kind: nack, nonce: "6"}, at(sent), false},
		{"current, push", at(current), event{kind: push, nonce: "8", offer: new}, pushed, true},
		{"current, ack again", at(current), event{kind: ack, nonce: "7"}, at(current), false},
		{"current, nack after all", at(current), event{kind: nack, nonce: "7"}, at(current), false},
		{"refused, push", at(refused), event{kind: push, nonce: "8", offer: new}, pushed, true},
		{"refused, ack after all", at(refused), event{kind: ack, nonce: "7"}, at(refused), false},
		{"refused, nack again", at(refused), event{kind: nack, nonce: "7"}, at(refused), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			to, counts := tc.from.step(tc.event)
			if to != tc.to || counts != tc.counts {
				t.Errorf("%+v, %v; want %+v, %v", to, counts, tc.to, tc.counts)
			}
		})
	}
}

// The states of a standing, for short.
const (
	behind  = outriggerv1.State_STATE_BEHIND
	running = outriggerv1.State_STATE_RUNNING
	no      = outriggerv1.State_STATE_REFUSED
)

// binding is a resource of a view at some version.
func binding(name, version string) *compile.Encoded {
	return &compile.Encoded{TypeURL: resource.TypeURL(resource.KindBinding), Name: name, Version: version}
}

func TestEveryStandingWithEveryAnswer(t *testing.T) {
	before, now := time.Unix(1, 0), time.Unix(2, 0)
	refusing := func(version, reason string) map[key]refusal {
		return map[key]refusal{keyOf(binding("b", "")): {version, reason}}
	}
	for _, tc := range []struct {
		name     string
		from     standing
		offered  string // version of b in what is answered; the view has v2
		refused  map[key]refusal
		runs     bool
		to       outriggerv1.State
		reason   string
		sinceNow bool
	}{
		{"behind, acked", standing{behind, "", before}, "v2", nil, true, running, "", true},
		{"behind, received only", standing{behind, "", before}, "v2", nil, false, behind, "", false},
		{"behind, named", standing{behind, "", before}, "v2", refusing("v2", "bad"), true, no, "bad", true},
		{"behind, named without version", standing{behind, "", before}, "v2", refusing("", "bad"), true, no, "bad", true},
		{"behind, named at an older version", standing{behind, "", before}, "v2", refusing("v1", "bad"), true, behind, "", false},
		{"behind, older offer acked", standing{behind, "", before}, "v1", nil, true, behind, "", false},
		{"behind, older offer named", standing{behind, "", before}, "v1", refusing("v1", "bad"), true, behind, "", false},
		{"behind, not offered", standing{behind, "", before}, "", nil, true, behind, "", false},
		{"running, acked", standing{running, "", before}, "v2", nil, true, running, "", false},
		{"running, named", standing{running, "", before}, "v2", refusing("v2", "bad"), true, no, "bad", true},
		{"running, older offer acked", standing{running, "", before}, "v1", nil, true, running, "", false},
		{"refused, acked", standing{no, "bad", before}, "v2", nil, true, running, "", true},
		{"refused, received only", standing{no, "bad", before}, "v2", nil, false, no, "bad", false},
		{"refused, named again", standing{no, "bad", before}, "v2", refusing("v2", "bad"), true, no, "bad", false},
		{"refused, named for another reason", standing{no, "bad", before}, "v2", refusing("v2", "worse"), true, no, "worse", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var offered []*compile.Encoded
			if tc.offered != "" {
				offered = append(offered, binding("b", tc.offered))
			}
			view := []*compile.Encoded{binding("b", "v2")}
			got := settle(view, []standing{tc.from}, answer{offered, tc.refused, tc.runs}, now)[0]
			want := standing{tc.to, tc.reason, before}
			if tc.sinceNow {
				want.since = now
			}
			if got != want {
				t.Errorf("%+v, want %+v", got, want)
			}
		})
	}
}

func TestANewViewKeepsTheStandingOfWhatIsUnchanged(t *testing.T) {
	before, now := time.Unix(1, 0), time.Unix(2, 0)
	old := []*compile.Encoded{binding("gone", "v1"), binding("same", "v1"), binding("changed", "v1")}
	stood := []standing{{running, "", before}, {no, "bad", before}, {running, "", before}}
	view := []*compile.Encoded{binding("changed", "v2"), binding("new", "v1"), binding("same", "v1")}
	want := []standing{{behind, "", now}, {behind, "", now}, {no, "bad", before}}
	for i, got := range carry(old, stood, view, now) {
		if got != want[i] {
			t.Errorf("%s: %+v, want %+v", view[i].Name, got, want[i])
		}
	}
}

func TestAnUnexplainedNackRefusesNothingThatRuns(t *testing.T) {
	s := &node{
		view:             &compile.View{Resources: []*compile.Encoded{binding("old", "v1"), binding("new", "v1")}},
		stands:           []standing{{state: running}, {state: behind}},
		answeredManifest: true,
	}
	got := unexplained(s.pending(s.view.Resources), "no")
	if _, ok := got[keyOf(binding("old", ""))]; ok || len(got) != 1 {
		t.Errorf("refused %v, want only new", got)
	}
}
