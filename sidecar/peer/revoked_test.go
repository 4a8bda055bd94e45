package peer

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/bridge/tolegacy"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// follow tells the deleted sidecars of the fleet to a Revoked, as a control plane does. told has what the last change
// ended.
func (f *fleet) follow(r *Revoked) (told chan int) {
	f.t.Helper()
	told = make(chan int, 99)
	ctx, cancel := context.WithCancel(f.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.ca.FollowRevoked(ctx, func(groups []*outriggerv1.Revocations) {
			var all []*outriggerv1.RevokedSidecar
			for _, g := range groups {
				all = append(all, g.Revoked...)
			}
			told <- r.Set(all)
		})
	}()
	f.t.Cleanup(func() { cancel(); <-done })
	if n := f.ended(told); n != 0 {
		f.t.Errorf("%d connections ended before anybody was deleted", n)
	}
	return told
}

// ended is how many connections the next change ends.
func (f *fleet) ended(told chan int) int {
	f.t.Helper()
	select {
	case n := <-told:
		return n
	case <-time.After(20 * time.Second):
		f.t.Fatal("nothing was heard of a change")
		return 0
	}
}

// begin is a call at a holder that has begun, and goes on.
func (f *fleet) begin(c *Client, h tolegacy.Holder) (ended chan error) {
	f.t.Helper()
	s, err := c.Resume(f.t.Context(), h, &outriggerv1.ResumeRequest{Upstream: "waits"})
	if err != nil {
		f.t.Fatal(err)
	}
	ended = make(chan error, 1)
	go func() {
		_, err := s.Next()
		s.Close()
		ended <- err
	}()
	return ended
}

// waiting is a Resumer that answers, but for what waits until whoever asked has gone.
func waiting(ctx context.Context, r *outriggerv1.ResumeRequest) (*upstream.Answer, error) {
	if r.Upstream == "waits" {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &upstream.Answer{Status: 200, Events: &script{nil, io.EOF, make(chan struct{})}}, nil
}

func TestADeletedSidecarIsNeitherAnsweredNorAsked(t *testing.T) {
	f := newFleet(t)
	deleted := new(Revoked) // as the sidecar "stays" knows them; the others are told nothing
	told := f.follow(deleted)
	stays, gone, other := f.join("stays"), f.join("ns/gone"), f.join("other")
	atStays := f.holderThatKnows(deleted, stays, resumer(waiting))
	atGone, atOther := f.holder(gone, resumer(waiting)), f.holder(other, resumer(waiting))
	ofStays, ofGone, ofOther := f.clientThatKnows(deleted, stays), f.client(gone), f.client(other)
	asks := func(what string, c *Client, h tolegacy.Holder, answered bool) {
		t.Helper()
		if err := first(t.Context(), c, h, &outriggerv1.ResumeRequest{}); errors.Is(err, io.EOF) != answered {
			t.Errorf("%s: %v, want an answer: %v", what, err, answered)
		}
	}
	asks("before, by the one", ofGone, atStays, true)
	asks("before, of the one", ofStays, atGone, true)

	served, dialed, others := f.begin(ofGone, atStays), f.begin(ofStays, atGone), f.begin(ofOther, atStays)
	if found, err := f.ca.Revoke(t.Context(), "ns/gone"); !found || err != nil {
		t.Fatalf("Revoke: %v, %v", found, err)
	}
	if n := f.ended(told); n != 2 {
		t.Errorf("%d connections ended, want the one that was served and the one that was dialed", n)
	}
	for what, ended := range map[string]chan error{"served": served, "dialed": dialed} {
		select {
		case err := <-ended:
			if err == nil || err == io.EOF {
				t.Errorf("a call over the connection that was %s: %v, want that it broke off", what, err)
			}
		case <-time.After(20 * time.Second):
			t.Errorf("a call over the connection that was %s goes on", what)
		}
	}
	for range 2 {
		asks("after, by the one", ofGone, atStays, false)
		asks("after, of the one", ofStays, atGone, false)
	}
	asks("by another", ofOther, atStays, true)
	asks("of another", ofStays, atOther, true)
	select {
	case err := <-others:
		t.Errorf("another's call ended: %v", err)
	default:
	}

	back := f.join("ns/gone") // with a new token
	asks("by who has its node id now", f.client(back), atStays, true)
	asks("of who has its node id now", f.clientThatKnows(deleted, stays), f.holder(back, resumer(waiting)), true)
	asks("by the one that was deleted, still", ofGone, atStays, false)
	deleted.Set(nil)
	asks("once its certificates would have ended", ofGone, atStays, true)
}

func TestWhichCertificatesARevocationMeans(t *testing.T) {
	r := new(Revoked)
	r.Set([]*outriggerv1.RevokedSidecar{{NodeId: "a", Admission: "1"}, {NodeId: "a", Admission: "2"}, {NodeId: "b", Admission: "3"}})
	for _, c := range []struct {
		node, admission string
		want            bool
	}{
		{"a", "1", true}, {"a", "2", true}, {"a", "3", false}, {"b", "3", true}, {"c", "1", false}, {"", "", false}, {"c", "", false},
		{"a", "", true}, // of a control plane that gave certificates no admission
	} {
		r.mu.Lock()
		if got := r.hasLocked(c.node, c.admission); got != c.want {
			t.Errorf("node id %q, admission %q: %v, want %v", c.node, c.admission, got, c.want)
		}
		r.mu.Unlock()
	}
}

// A connection that was closed, or was never let in, is not kept.
func TestEndedConnectionsAreForgotten(t *testing.T) {
	f := newFleet(t)
	deleted := new(Revoked)
	id := f.join("asking")
	h := f.holderThatKnows(deleted, f.join("holder"), resumer(waiting))
	c := f.client(id)
	if err := first(t.Context(), c, h, &outriggerv1.ResumeRequest{}); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	open := func() int {
		deleted.mu.Lock()
		defer deleted.mu.Unlock()
		return len(deleted.open)
	}
	if n := open(); n != 1 {
		t.Errorf("%d connections are open, want 1", n)
	}
	c.Close()
	for deadline := time.Now().Add(20 * time.Second); open() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d connections are kept after the end", open())
		}
	}
}
