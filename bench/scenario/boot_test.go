package scenario

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestFiguresOfStartsAreMediansAndTheWorst(t *testing.T) {
	ms := time.Millisecond
	got := bootFigures([]start{{1 * ms, 9 * ms, 20 * ms}, {3 * ms, 5 * ms, 10 * ms}, {2 * ms, 400 * ms, 30 * ms}})
	for name, want := range map[string]float64{"healthz_ms": 2, "first_call_ms": 9, "worst_ms": 400, "cpu_ms": 20, "starts": 3} {
		if got[name] != want {
			t.Errorf("%s = %v, want %v", name, got[name], want)
		}
	}
}

func TestTryingEndsWithWhatFailedLast(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	late, last := errors.New("late"), errors.New("refused")
	tries := 0
	_, err := since(ctx, time.Now(), func() error {
		if tries++; tries == 3 {
			cancel(late)
		}
		return last
	})
	if tries < 3 || !errors.Is(err, late) || !errors.Is(err, last) {
		t.Errorf("after %d tries: %v, want both why it ended and what failed", tries, err)
	}
}
