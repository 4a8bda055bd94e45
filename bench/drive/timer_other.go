//go:build !linux

package drive

import (
	"context"
	"time"
)

// timer sleeps as exactly as the runtime can.
type timer struct{}

func newTimer() *timer { return &timer{} }

// sleepUntil returns when it is time, never before, or when ctx ends.
func (t *timer) sleepUntil(ctx context.Context, at time.Time) { sleep(ctx, time.Until(at)) }

func (t *timer) wake() {}

func (t *timer) close() {}
