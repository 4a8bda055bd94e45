package care

import (
	"fmt"
	"testing"
	"time"
)

// inState makes a breaker in a phase, with retry time at and the epoch 4.
func inState(p phase, faults, opened int, at time.Time) breaker {
	b := breaker{limit: 3, retryAfter: time.Second, trialTime: 10 * time.Second, phase: p, epoch: 4, faults: faults, opened: opened}
	if p != closed {
		b.retryAt = at
	}
	return b
}

func (p phase) String() string { return [...]string{"closed", "open", "half-open"}[p] }

// show is a breaker in short: its phase, what matters there, and the epoch.
func show(b breaker, from time.Time) string {
	s := fmt.Sprintf("%v faults=%d opened=%d epoch=%d", b.phase, b.faults, b.opened, b.epoch)
	if b.doubts > 0 {
		s += fmt.Sprintf(" doubts=%d", b.doubts)
	}
	if b.phase != closed {
		s += fmt.Sprintf(" retry=%v", b.retryAt.Sub(from))
	}
	return s
}

func TestABreakerInEveryStateWithEveryEvent(t *testing.T) {
	now := time.Unix(1000, 0)
	calm, troubled, healed := inState(closed, 0, 0, now), inState(closed, 2, 0, now), inState(closed, 2, 1, now)
	early, due := inState(open, 0, 1, now.Add(time.Second)), inState(open, 0, 1, now)
	doubtful, checked, lastFault := calm, calm, calm
	checked.checked, doubtful.checked, doubtful.doubts = true, true, 7
	lastFault.faults = 2
	trying, hung := inState(halfOpen, 0, 1, now.Add(time.Second)), inState(halfOpen, 0, 1, now)
	const (
		calmIs     = "closed faults=0 opened=0 epoch=4"
		troubledIs = "closed faults=2 opened=0 epoch=4"
		earlyIs    = "open faults=0 opened=1 epoch=4 retry=1s"
		tryingIs   = "half-open faults=0 opened=1 epoch=4 retry=1s"
	)
	tests := []struct {
		state  string
		b      breaker
		event  event
		ticket uint64
		want   string
		passes bool
	}{
		{"calm", calm, ask, 0, calmIs, true},
		{"calm", calm, answered, 4, calmIs, false},
		{"calm", calm, succeeded, 4, calmIs, false},
		{"calm", calm, failed, 4, "closed faults=1 opened=0 epoch=4", false},
		{"calm", calm, broke, 4, "closed faults=1 opened=0 epoch=4", false},
		{"calm", calm, late, 4, "closed faults=1 opened=0 epoch=4", false},
		{"calm", calm, broke, 3, calmIs, false},
		{"calm", calm, noOutcome, 4, calmIs, false},
		{"calm", calm, proved, 0, calmIs, false},
		{"calm", calm, disproved, 0, calmIs, false},
		{"calm", calm, brokeAgain, 0, calmIs, false},
		{"calm", calm, nothing, 0, calmIs, false},

		{"troubled", troubled, ask, 0, troubledIs, true},
		{"troubled", troubled, answered, 4, troubledIs, false},
		{"troubled", troubled, succeeded, 4, calmIs, false},
		{"troubled", troubled, succeeded, 3, troubledIs, false},
		{"troubled", troubled, failed, 4, "open faults=0 opened=1 epoch=5 retry=1s", false},
		{"troubled", troubled, broke, 4, "open faults=0 opened=1 epoch=5 retry=1s", false},
		{"troubled", troubled, late, 4, "open faults=0 opened=1 epoch=5 retry=1s", false},
		{"troubled", troubled, failed, 3, troubledIs, false},
		{"troubled", troubled, noOutcome, 4, troubledIs, false},
		{"troubled", troubled, proved, 0, troubledIs, false},
		{"troubled", troubled, disproved, 0, troubledIs, false},
		{"troubled", troubled, brokeAgain, 0, troubledIs, false},
		{"troubled", troubled, nothing, 0, troubledIs, false},

		{"healed", healed, broke, 4, "open faults=0 opened=2 epoch=5 retry=2s", false},
		{"healed", healed, succeeded, 4, calmIs, false},

		{"calm", calm, doubted, 4, "closed faults=1 opened=0 epoch=4", false}, // without checks
		{"calm", calm, doubted, 3, calmIs, false},
		{"without checks", lastFault, doubted, 4, "open faults=0 opened=1 epoch=5 retry=1s", false},
		{"checked", checked, doubted, 4, "closed faults=0 opened=0 epoch=4 doubts=1", false},
		{"doubtful", doubtful, doubted, 4, "closed faults=0 opened=0 epoch=4 doubts=8", false},
		{"doubtful", doubtful, ask, 0, "closed faults=0 opened=0 epoch=4 doubts=7", true},
		{"doubtful", doubtful, noOutcome, 4, "closed faults=0 opened=0 epoch=4 doubts=7", false},
		{"doubtful", doubtful, proved, 0, calmIs, false},
		{"doubtful", doubtful, succeeded, 4, calmIs, false},
		{"doubtful", doubtful, failed, 4, "open faults=0 opened=1 epoch=5 retry=1s", false},
		{"trying", trying, doubted, 4, "open faults=0 opened=2 epoch=5 retry=2s", false},

		{"early", early, ask, 0, earlyIs, false},
		{"early", early, answered, 4, earlyIs, false},
		{"early", early, succeeded, 4, earlyIs, false},
		{"early", early, succeeded, 3, earlyIs, false},
		{"early", early, failed, 4, earlyIs, false},
		{"early", early, broke, 3, earlyIs, false},
		{"early", early, late, 4, earlyIs, false},
		{"early", early, noOutcome, 4, earlyIs, false},
		{"early", early, proved, 0, "closed faults=0 opened=1 epoch=5", false},
		{"early", early, disproved, 0, earlyIs, false},
		{"early", early, brokeAgain, 0, earlyIs, false},
		{"early", early, nothing, 0, earlyIs, false},
		{"due", due, ask, 0, "half-open faults=0 opened=1 epoch=5 retry=10s", true},

		{"trying", trying, ask, 0, tryingIs, false},
		{"trying", trying, answered, 4, "closed faults=2 opened=1 epoch=4", false},
		{"trying", trying, answered, 3, tryingIs, false},
		{"trying", trying, succeeded, 4, calmIs, false},
		{"trying", trying, succeeded, 3, tryingIs, false},
		{"trying", trying, failed, 4, "open faults=0 opened=2 epoch=5 retry=2s", false},
		{"trying", trying, failed, 3, tryingIs, false},
		{"trying", trying, broke, 4, "open faults=0 opened=2 epoch=5 retry=2s", false},
		{"trying", trying, late, 4, "open faults=0 opened=2 epoch=5 retry=2s", false},
		{"trying", trying, noOutcome, 4, "open faults=0 opened=1 epoch=5 retry=0s", false},
		{"trying", trying, noOutcome, 3, tryingIs, false},
		{"trying", trying, proved, 0, "closed faults=0 opened=1 epoch=5", false},
		{"trying", trying, disproved, 0, tryingIs, false},
		{"trying", trying, brokeAgain, 0, tryingIs, false},
		{"trying", trying, nothing, 0, tryingIs, false},
		{"hung", hung, ask, 0, "half-open faults=0 opened=1 epoch=5 retry=10s", true},
	}
	for _, tt := range tests {
		next, passes := tt.b.step(move{event: tt.event, ticket: tt.ticket, now: now})
		if got := show(next, now); got != tt.want || passes != tt.passes {
			t.Errorf("%s, event %d with ticket %d: %s, passes %v; want %s, %v", tt.state, tt.event, tt.ticket, got, passes, tt.want, tt.passes)
		}
	}
}

func TestPausesDoubleUpToAMinuteAndAreSpread(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, spread := range []time.Duration{0, time.Second / 4} {
		b := inState(closed, 2, 0, now)
		want := time.Second
		for range 12 {
			b, _ = b.step(move{event: failed, ticket: b.epoch, now: now, spread: spread})
			if got, least := b.retryAt.Sub(now), want-want/time.Duration(4); spread == 0 && got != want || spread != 0 && got != least {
				t.Fatalf("after %d openings the pause is %v with a spread of %v, want %v less that share", b.opened, got, spread, want)
			}
			now = b.retryAt
			b, _ = b.step(move{event: ask, now: now})
			want = min(2*want, time.Minute)
		}
	}
}

func TestWhoeverHasNoTicketOfNowChangesNothing(t *testing.T) {
	now := time.Unix(1000, 0)
	b := inState(closed, 2, 0, now)
	stale := b.epoch
	b, _ = b.step(move{event: broke, ticket: stale, now: now})
	for range 10 { // calls that were under way when it opened
		b, _ = b.step(move{event: broke, ticket: stale, now: now})
		b, _ = b.step(move{event: succeeded, ticket: stale, now: now})
	}
	if got, want := show(b, now), "open faults=0 opened=1 epoch=5 retry=1s"; got != want {
		t.Errorf("after calls of before had ended: %s, want %s", got, want)
	}
}
