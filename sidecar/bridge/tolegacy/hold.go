package tolegacy

import (
	"slices"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// A call asks its client like this (basic/patterns/mrtr):
//
//	client's request ──▶ running ──the server asks──▶ held ──retry with answers──▶ running ──▶ its result
//	                        │                          │
//	                  client leaves              time is over          both cancel the call at the server
//
// A requestState names the call and a round. The newest state goes on with the call and begins the next round. The one
// before it may come again, for its answer may have got lost: then the current question is asked again, or the result
// waited for, and the answers that come with it are not looked at, because the server has some already. The request that
// came first then ends with an error. Any older state is refused. The server never gets two answers to a question, and a
// call is never run again. A retry may want other log messages than the request did; it gets those of them that the
// server was told to send for the request.

const (
	maxQuestions = 32      // of one call that are not answered
	maxKept      = 1 << 20 // bytes of an answer that came while nobody waited; twice that with one call's questions
	maxKeptByAll = 64 << 20
)

// ask ends the reader's request with the questions that are pending; the call is held from then on. Without a reader, or
// a question, it does nothing.
func (k *call) ask() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.reader == nil || len(k.pending) == 0 || k.outcome != nil {
		return
	}
	if err := k.holdLocked(); err != nil {
		k.settleLocked(failed(err))
		k.cancel()
		return
	}
	requestState := k.server.sealState(k.binding, state{
		Holder: k.server.holder.ID, Address: k.server.holder.Address, Call: k.heldAs, Round: k.round,
		Principal: principalDigest(k.principal), Digest: k.digest,
	})
	if !k.reader.finish(inputRequired(k.reader.id, k.pending, requestState), 200, nil) {
		return // the client has just left, which cancels the call
	}
	k.reader = nil
	k.absence++
	absence := k.absence
	k.expiry = time.AfterFunc(k.server.settings.heldTimeout, func() { k.expire(absence) })
}

// holdLocked puts the call among those that are held, if it may ask once more.
func (k *call) holdLocked() error {
	s := k.server
	if k.round > s.settings.maxRounds {
		return s.fault(upstream.Overloaded, "asked its client more often than a call may", nil)
	}
	if k.heldAs != "" {
		return nil
	}
	id, refused := s.held.add(k)
	if refused != "" {
		return s.fault(upstream.Overloaded, refused, nil)
	}
	k.heldAs = id
	k.digestLocked()
	return nil
}

// digestLocked makes the request's digest, and lets go of the request.
func (k *call) digestLocked() {
	if k.sent != nil {
		k.digest, k.sent = digest(k.sent), nil
	}
}

// keepLocked counts memory that the call keeps, or reports that it is too much.
func (k *call) keepLocked(n int) bool {
	if k.bytes+n > 2*maxKept || !k.server.held.keep(n) {
		return false
	}
	k.bytes += n
	return true
}

// overLocked lets go of what was kept for the client.
func (k *call) overLocked() {
	if k.over {
		return
	}
	k.over = true
	if k.expiry != nil {
		k.expiry.Stop()
	}
	if k.heldAs != "" {
		k.server.held.remove(k.heldAs)
	}
	k.server.held.keep(-k.bytes)
	k.bytes = 0
}

// expire gives up a call whose client did not come back: its questions get no for an answer, and it is cancelled.
func (k *call) expire(absence int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.over || k.reader != nil || k.absence != absence {
		return // the client has just come back
	}
	k.overLocked()
	pending := slices.Clone(k.pending)
	if k.outcome != nil {
		return // the server is done already
	}
	if !k.server.tasks.Run(func() { k.abandon(pending) }) {
		k.cancel()
	}
}

func (k *call) abandon(pending []question) {
	defer k.cancel()
	ctx, stop := k.server.brief()
	defer stop()
	for _, q := range pending {
		result := noAnswer
		if q.method == mcp.MethodElicit {
			result = nobodyCame
		}
		if k.on.reply(ctx, q.id, result) != nil {
			return
		}
	}
}
