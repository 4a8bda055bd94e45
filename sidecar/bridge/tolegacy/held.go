package tolegacy

import (
	"crypto/rand"
	"sync"

	"github.com/outrigger-mesh/outrigger/sidecar/budget"
)

// heldCalls are the calls of a Server that have asked, until they are over.
type heldCalls struct {
	most   int
	budget *budget.Budget // of the process

	mu    sync.Mutex // guards below
	byID  map[string]*call
	of    map[string]int // how many of them a principal has; only those that have any
	bytes int            // that calls keep in memory, in questions and answers
}

func newHeldCalls(most int, b *budget.Budget) *heldCalls {
	return &heldCalls{most: most, budget: b, byID: make(map[string]*call), of: make(map[string]int)}
}

func (h *heldCalls) get(id string) *call {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.byID[id]
}

// Reasons for which a call is not held.
const (
	tooManyHeld = "too many calls wait for their clients' answers: try again later"
	tooManyOwn  = "as many calls of this caller wait for its answers as one caller may have: answer those first"
)

// add gives a call a name, or says why it is not held. Names are random: a call of before a restart has none of now.
func (h *heldCalls) add(k *call) (id, refused string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case len(h.byID) >= h.most:
		return "", tooManyHeld
	case h.of[k.principal] >= share(h.most):
		return "", tooManyOwn
	}
	id = rand.Text()
	h.byID[id] = k
	h.of[k.principal]++
	return id, ""
}

// keep counts n bytes more, or reports that there are enough. n may be negative.
func (h *heldCalls) keep(n int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case n <= 0:
		h.budget.Give(-n)
	case h.bytes+n > maxKeptByAll || !h.budget.Take(n):
		return false
	}
	h.bytes += n
	return true
}

func (h *heldCalls) remove(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	k := h.byID[id]
	if k == nil {
		return
	}
	delete(h.byID, id)
	if h.of[k.principal]--; h.of[k.principal] == 0 {
		delete(h.of, k.principal)
	}
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
