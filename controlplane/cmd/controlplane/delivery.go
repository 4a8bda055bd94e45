package main

import (
	"fmt"
	"sync"
	"time"
)

// stalledAfter is how long changes may be stored without any of them reaching the sidecars' configuration.
const stalledAfter = 5 * time.Second

// delivery notices when what is stored is not delivered any more.
type delivery struct {
	mu      sync.Mutex // guards below
	reached int64      // when it was found behind
	since   time.Time  // when that was; zero while it is not behind
}

// check compares the revision of the last change with the one that delivery has reached. It fails when delivery is
// behind and has not moved for stalledAfter.
func (d *delivery) check(stored, reached int64, now time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case reached >= stored:
		d.since = time.Time{}
	case d.since.IsZero() || reached != d.reached:
		d.reached, d.since = reached, now
	case now.Sub(d.since) >= stalledAfter:
		return fmt.Errorf("changes are not delivered: revision %d is stored, %d was reached %v ago",
			stored, reached, now.Sub(d.since).Round(time.Second))
	}
	return nil
}
