package store

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// rewatchAfter is the pause before a watch that etcd ended is opened again.
const rewatchAfter = time.Second

// hub keeps a store's only etcd watch and hands each change to every Watch.
//
// One, because etcd's client carries all watches of a process on one stream, and an embedded member does not read that
// stream while it has something to say: when many watches on it are cancelled at once, both sides wait for each other
// and nothing is ever delivered again.
type hub struct {
	// Set by newHub, never changed.
	client *clientv3.Client
	prefix string // of the store's keys
	log    *slog.Logger
	open   context.Context // ends with close
	cancel context.CancelFunc

	running sync.WaitGroup // run and the readers

	mu       sync.Mutex // guards below
	seen     int64      // every change up to this revision has been handed out
	watchers map[*watcher]struct{}
}

// watcher is one Watch. It belongs to its reader but for what the hub puts in.
type watcher struct {
	prefix string
	in     chan Batch // capacity watchBuffer, and one for an error, after which it is closed
}

// newHub starts handing out what changes after a revision. Its caller closes it.
func newHub(c *clientv3.Client, prefix string, after int64, log *slog.Logger) *hub {
	h := &hub{client: c, prefix: prefix, log: log, seen: after, watchers: map[*watcher]struct{}{}}
	h.open, h.cancel = context.WithCancel(context.Background())
	h.running.Go(h.run)
	return h
}

// close ends every Watch and waits for their goroutines.
func (h *hub) close() {
	h.mu.Lock() // so that nobody joins while it waits
	h.cancel()
	h.mu.Unlock()
	h.running.Wait()
}

// run keeps the etcd watch open. What changed while it was not is handed out when it is open again.
func (h *hub) run() {
	for {
		err := h.follow()
		if h.open.Err() != nil {
			return
		}
		h.log.Warn("watching the store again", "error", err)
		select {
		case <-h.open.Done():
			return
		case <-time.After(rewatchAfter):
		}
		if errors.Is(err, rpctypes.ErrCompacted) {
			h.skip()
		}
	}
}

// follow opens the etcd watch and hands out what it says until it ends.
func (h *hub) follow() error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(h.open))
	defer cancel()
	h.mu.Lock()
	from := h.seen + 1
	h.mu.Unlock()
	changes := h.client.Watch(ctx, h.prefix, clientv3.WithPrefix(), clientv3.WithRev(from), clientv3.WithProgressNotify())
	for res := range changes {
		if err := res.Err(); err != nil {
			return err
		}
		if res.IsProgressNotify() {
			h.advance(res.Header.Revision)
		}
		for _, b := range batches(h.prefix, res.Events) {
			h.deliver(b)
		}
	}
	return errors.New("the watch ended")
}

// advance notes that nothing of this store changed up to a revision.
func (h *hub) advance(revision int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen = max(h.seen, revision)
}

// skip goes on from now, changes between having been compacted before they were seen. Every Watch ends: it missed them.
func (h *hub) skip() {
	ctx, cancel := context.WithTimeout(h.open, callTimeout)
	defer cancel()
	res, err := h.client.Get(ctx, h.prefix)
	if err != nil {
		return // the watch fails as before, and this comes again
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen = res.Header.Revision
	for w := range h.watchers {
		h.endLocked(w, ErrCompacted)
	}
}

// deliver hands one transaction to every watcher that it concerns. It never blocks.
func (h *hub) deliver(b Batch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen = b.Revision
	parts := map[string]Batch{} // by prefix
	for w := range h.watchers {
		part, ok := parts[w.prefix]
		if !ok {
			part = b.below(w.prefix)
			parts[w.prefix] = part
		}
		switch {
		case len(part.Events) == 0:
		case len(w.in) >= watchBuffer:
			h.endLocked(w, ErrLagging)
		default:
			w.in <- part
		}
	}
}

// endLocked ends a Watch with an error, for which its channel has room.
func (h *hub) endLocked(w *watcher, err error) {
	w.in <- Batch{Err: err}
	close(w.in)
	delete(h.watchers, w)
}

// join adds a watcher, which gets what changes after the revision that its reader is told. After close it
// returns false and starts no reader.
func (h *hub) join(w *watcher, read func(seen int64)) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open.Err() != nil {
		return false
	}
	h.watchers[w] = struct{}{}
	seen := h.seen
	h.running.Go(func() { read(seen) })
	return true
}

// leave removes a watcher, if it is not removed already.
func (h *hub) leave(w *watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.watchers, w)
}

// below is the part of a batch whose keys begin with prefix.
func (b Batch) below(prefix string) Batch {
	part := Batch{Revision: b.Revision}
	for _, e := range b.Events {
		if strings.HasPrefix(e.Key, prefix) {
			part.Events = append(part.Events, e)
		}
	}
	return part
}

// batches groups events, which come in order of revisions, by transaction.
func batches(prefix string, events []*clientv3.Event) []Batch {
	var batches []Batch
	for _, ev := range events {
		rev := ev.Kv.ModRevision
		if n := len(batches); n == 0 || batches[n-1].Revision != rev {
			batches = append(batches, Batch{Revision: rev})
		}
		b := &batches[len(batches)-1]
		b.Events = append(b.Events, Event{
			Entry: Entry{
				Key:      strings.TrimPrefix(string(ev.Kv.Key), prefix),
				Value:    ev.Kv.Value,
				Revision: rev,
			},
			Deleted: ev.Type == clientv3.EventTypeDelete,
		})
	}
	return batches
}
