package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
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

// Batch is every change that one transaction made below a watched prefix, or the error with which the watch ends. It
// is shared with other watchers: read only. The events are in order of revisions.
type Batch struct {
	Events   []Event
	Revision int64
	Err      error
}

// Watch sends what changes below prefix after a revision, such as one that List returned: each transaction as one
// Batch, in order of revisions, none missed. What had changed already when Watch was called comes first, as one Batch
// that leads to the same state: of each key only the last change, but a key that was deleted and made again has both. It
// may have no events, and then tells only the revision.
//
// The channel is closed when ctx or the Store ends, or after a Batch with an error: ErrCompacted, ErrLagging, or that
// of a lost store. A lost connection is restored silently. Any number may watch; they share one etcd watch.
func (s *Store) Watch(ctx context.Context, prefix string, after int64) <-chan Batch {
	out := make(chan Batch)
	w := &watcher{prefix: prefix, in: make(chan Batch, watchBuffer+1)}
	joined := s.hub.join(w, func(seen int64) {
		defer close(out)
		defer s.hub.leave(w)
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(s.hub.open, cancel)()
		s.read(ctx, w, after, seen, out)
	})
	if !joined {
		close(out)
	}
	return out
}

// read sends what changed after a revision until the hub had seen so far, and then what the hub hands out.
func (s *Store) read(ctx context.Context, w *watcher, after, seen int64, out chan<- Batch) {
	if seen > after && !s.catchUp(ctx, w.prefix, after, seen, out) {
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case b, ok := <-w.in:
			if !ok {
				return
			}
			if b.Err != nil {
				b.Err = fmt.Errorf("store: watch %s: %w", w.prefix, b.Err)
			} else if b.Revision <= after {
				continue // in the List already
			}
			if !send(ctx, out, b) {
				return
			}
		}
	}
}

// catchUp sends what changed between two revisions, be it nothing, and reports whether the watch goes on.
func (s *Store) catchUp(ctx context.Context, prefix string, from, to int64, out chan<- Batch) bool {
	b, err := s.between(ctx, prefix, from, to)
	switch {
	case ctx.Err() != nil:
		return false
	case err != nil:
		send(ctx, out, Batch{Err: fmt.Errorf("store: watch %s: %w", prefix, err)})
		return false
	default:
		return send(ctx, out, b)
	}
}

// send sends a batch unless ctx ends first.
func send(ctx context.Context, out chan<- Batch, b Batch) bool {
	select {
	case out <- b:
		return true
	case <-ctx.Done():
		return false
	}
}

// between is what one must do to the keys below prefix as they were at one revision to have them as at a later one.
// Errors: ErrCompacted.
func (s *Store) between(ctx context.Context, prefix string, from, to int64) (Batch, error) {
	before := map[string]bool{}
	if from > 0 { // at revision 0 there is nothing
		old, err := s.at(ctx, prefix, from, clientv3.WithKeysOnly())
		if err != nil {
			return Batch{}, err
		}
		for _, kv := range old.Kvs {
			before[string(kv.Key)] = true
		}
	}
	now, err := s.at(ctx, prefix, to)
	if err != nil {
		return Batch{}, err
	}
	b := Batch{Revision: to}
	add := func(key string, value []byte, revision int64, deleted bool) {
		e := Entry{Key: strings.TrimPrefix(key, s.prefix), Value: value, Revision: revision}
		b.Events = append(b.Events, Event{Entry: e, Deleted: deleted})
	}
	for _, kv := range now.Kvs {
		key := string(kv.Key)
		if before[key] && kv.CreateRevision > from {
			add(key, nil, kv.CreateRevision, true) // and made again
		}
		if kv.ModRevision > from {
			add(key, kv.Value, kv.ModRevision, false)
		}
		delete(before, key)
	}
	for key := range before {
		add(key, nil, to, true)
	}
	slices.SortStableFunc(b.Events, func(x, y Event) int { return cmp.Compare(x.Revision, y.Revision) })
	return b, nil
}

// at reads the keys below prefix as they were at a revision.
func (s *Store) at(ctx context.Context, prefix string, revision int64, o ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := s.client.Get(ctx, s.prefix+prefix, append(o, clientv3.WithPrefix(), clientv3.WithRev(revision))...)
	if errors.Is(err, rpctypes.ErrCompacted) {
		return nil, fmt.Errorf("%w: %d", ErrCompacted, revision)
	}
	return res, err
}
