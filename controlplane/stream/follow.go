package stream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/compile"
	"github.com/outrigger-mesh/outrigger/controlplane/store"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

// Changes are merged until the store holds still for quiet, or since the first of them mostQuiet has passed.
const (
	quiet      = 20 * time.Millisecond
	mostQuiet  = 200 * time.Millisecond
	retryAfter = time.Second // a store that failed
)

// Source is where desired state is read from: a *store.Store.
type Source interface {
	List(ctx context.Context, prefix string) (entries []store.Entry, revision int64, err error)
	Watch(ctx context.Context, prefix string, after int64) <-chan store.Batch
}

// Follow keeps the Server at what the store says, until ctx ends. It reads everything once and then only changes;
// when the store has dropped history that it needs, or fails, it reads everything again.
func (s *Server) Follow(ctx context.Context, st Source) {
	f := follower{server: s, store: st, objects: map[string]resource.Object{}}
	for {
		err := f.run(ctx)
		if ctx.Err() != nil {
			return
		}
		s.opts.Log.Warn("reading desired state again", "error", err)
		if errors.Is(err, store.ErrCompacted) || errors.Is(err, store.ErrLagging) {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(retryAfter):
		}
	}
}

// follower is one Follow. It belongs to one goroutine.
type follower struct {
	server  *Server
	store   Source
	objects map[string]resource.Object // by store key
}

// run reads everything, then follows changes until the watch ends.
func (f *follower) run(ctx context.Context) error {
	entries, revision, err := f.store.List(ctx, store.ResourcesPrefix)
	if err != nil {
		return err
	}
	f.reset(entries)
	f.publish(revision)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changes := f.store.Watch(ctx, store.ResourcesPrefix, revision)
	for {
		first, ok := <-changes
		if !ok {
			return errors.New("the watch ended")
		}
		if revision, err = f.merge(first, changes); err != nil {
			return err
		}
		f.publish(revision)
	}
}

// merge takes a batch and those that follow it closely, and returns the last one's revision.
func (f *follower) merge(b store.Batch, changes <-chan store.Batch) (revision int64, err error) {
	most := time.After(mostQuiet)
	for ok := true; ok; {
		if b.Err != nil {
			return 0, b.Err
		}
		f.apply(b)
		revision = b.Revision
		select {
		case b, ok = <-changes:
		case <-time.After(quiet):
			return revision, nil
		case <-most:
			return revision, nil
		}
	}
	return 0, errors.New("the watch ended")
}

// reset makes the entries all there is. An entry that cannot be read leaves what was known of it.
func (f *follower) reset(entries []store.Entry) {
	before := f.objects
	f.objects = make(map[string]resource.Object, len(entries))
	for _, e := range entries {
		if o, ok := before[e.Key]; ok {
			f.objects[e.Key] = o
		}
		f.put(e)
	}
}

func (f *follower) apply(b store.Batch) {
	for _, e := range b.Events {
		if e.Deleted {
			delete(f.objects, e.Key)
		} else {
			f.put(e.Entry)
		}
	}
}

// put keeps an entry's object. One that cannot be read, which a newer control plane may have written, changes nothing:
// the form before goes on running.
func (f *follower) put(e store.Entry) {
	o, err := f.decode(e)
	if err != nil {
		f.server.opts.Log.Error("stored resource left as it was before", "key", e.Key, "error", err)
		return
	}
	f.objects[e.Key] = o
}

func (f *follower) decode(e store.Entry) (resource.Object, error) {
	r, err := f.server.opts.Secrets.OpenResource(e)
	if err != nil {
		return nil, err
	}
	o, errs := resource.Decode(r)
	if len(errs) > 0 {
		return nil, fmt.Errorf("revision %d: %w", e.Revision, errs)
	}
	return o, nil
}

// publish compiles the objects and gives them to the server.
func (f *follower) publish(revision int64) {
	f.server.SetCompiled(compile.Compile(slices.Collect(maps.Values(f.objects)), revision))
}
