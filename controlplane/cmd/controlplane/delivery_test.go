package main

import (
	"testing"
	"time"
)

func TestADeliveryThatStandsStillIsNoticed(t *testing.T) {
	var d delivery
	start := time.Now()
	for i, step := range []struct {
		after           time.Duration // from the start
		stored, reached int64
		fails           bool
	}{
		{0, 4, 4, false},
		{time.Hour, 5, 4, false}, // a change just made
		{time.Hour + stalledAfter - 1, 6, 4, false},
		{time.Hour + stalledAfter, 6, 4, true},
		{time.Hour + stalledAfter + 1, 7, 5, false}, // behind, but moving
		{time.Hour + 2*stalledAfter + 1, 8, 5, true},
		{time.Hour + 2*stalledAfter + 2, 8, 8, false},
		{2 * time.Hour, 9, 8, false},
	} {
		if err := d.check(step.stored, step.reached, start.Add(step.after)); (err != nil) != step.fails {
			t.Errorf("step %d, %+v: %v", i, step, err)
		}
	}
}
