package store

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// watchBuffer is how many transactions a watcher may be behind before its watch ends with ErrLagging.
const watchBuffer = 256

// ErrLagging ends a Watch whose reader is too slow. It may watch again from the last revision that it saw.
var ErrLagging = errors.New("reader too slow")

// Event is one change to one key.
type Event struct {
	Entry        // a deletion has no value
	Deleted bool //
}

// Batch is every change that one transaction made below a watched prefix, or the error with which the watch ends.
type Batch struct {
	Events   []Event
	Revision int64
	Err      error
}

// Watch sends what changes below prefix after a revision, such as one that List returned: each transaction as one
// Batch, in order of revisions, none missed. The channel is closed when ctx ends, or after a Batch with an error:
// ErrCompacted, ErrLagging, or that of a lost store. A lost connection is restored silently.
func (s *Store) Watch(ctx context.Context, prefix string, after int64) <-chan Batch {
	out := make(chan Batch, watchBuffer+1) // one more for the error
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	in := s.client.Watch(ctx, s.prefix+prefix, clientv3.WithPrefix(), clientv3.WithRev(after+1))
	go func() {
		defer cancel()
		defer close(out)
		for res := range in {
			if err := s.forward(out, res, prefix); err != nil {
				out <- Batch{Err: err}
				return
			}
		}
	}()
	return out
}

// forward puts a response's transactions on out, never blocking, and leaves room there for one error.
func (s *Store) forward(out chan<- Batch, res clientv3.WatchResponse, prefix string) error {
	if err := res.Err(); err != nil {
		if errors.Is(err, rpctypes.ErrCompacted) {
			return fmt.Errorf("store: watch %s: %w, which is %d", prefix, ErrCompacted, res.CompactRevision)
		}
		return fmt.Errorf("store: watch %s: %w", prefix, err)
	}
	for _, batch := range s.batches(res.Events) {
		if len(out) >= watchBuffer {
			return fmt.Errorf("store: watch %s: %w", prefix, ErrLagging)
		}
		out <- batch
	}
	return nil
}

// batches groups events, which come in order of revisions, by transaction.
func (s *Store) batches(events []*clientv3.Event) []Batch {
	var batches []Batch
	for _, ev := range events {
		rev := ev.Kv.ModRevision
		if n := len(batches); n == 0 || batches[n-1].Revision != rev {
			batches = append(batches, Batch{Revision: rev})
		}
		b := &batches[len(batches)-1]
		b.Events = append(b.Events, Event{
			Entry: Entry{
				Key:      strings.TrimPrefix(string(ev.Kv.Key), s.prefix),
				Value:    ev.Kv.Value,
				Revision: rev,
			},
			Deleted: ev.Type == clientv3.EventTypeDelete,
		})
	}
	return batches
}
