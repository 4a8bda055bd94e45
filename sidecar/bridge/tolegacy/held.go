package tolegacy

import (
	"crypto/rand"
	"sync"
)

// heldCalls are the calls of a Server that have asked, until they are over.
type heldCalls struct {
	most int

	mu    sync.Mutex // guards below
	byID  map[string]*call
	bytes int // that calls keep in memory, in questions and answers
}

func newHeldCalls(most int) *heldCalls { return &heldCalls{most: most, byID: make(map[string]*call)} }

func (h *heldCalls) get(id string) *call {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.byID[id]
}

// add gives a call a name, or reports that there are enough. Names are random: a call of before a restart has none of
// now.
func (h *heldCalls) add(k *call) (id string, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.byID) >= h.most {
		return "", false
	}
	id = rand.Text()
	h.byID[id] = k
	return id, true
}

// keep counts n bytes more, or reports that there are enough. n may be negative.
func (h *heldCalls) keep(n int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n > 0 && h.bytes+n > maxKeptByAll {
		return false
	}
	h.bytes += n
	return true
}

func (h *heldCalls) remove(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.byID, id)
}

// stop gives up every held call: their retries come too late.
func (h *heldCalls) stop() {
	h.mu.Lock()
	var all []*call
	for _, k := range h.byID {
		all = append(all, k)
	}
	h.mu.Unlock()
	for _, k := range all {
		k.mu.Lock()
		if k.reader == nil {
			k.overLocked()
		}
		k.mu.Unlock()
	}
}
