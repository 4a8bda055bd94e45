package session

import (
	"context"
	"runtime"
	"testing"
	"time"
)

// idleBytes is what one idle session may hold of this package's memory. A sidecar has 10,000 of them by default.
const idleBytes = 512

func TestAnIdleSessionHoldsHalfAKilobyte(t *testing.T) {
	const n = 5000
	_, open, _ := newStore(t, Settings{IdleTimeout: time.Hour, Max: n, ReplayBytes: 1})
	before := heap()
	all := make([]*Session, n)
	for i := range all {
		all[i] = open()
		forward(all[i])
	}
	each := int64(heap()-before) / n
	if each > idleBytes {
		t.Errorf("an idle session holds %d bytes, want at most %d", each, idleBytes)
	}
	runtime.KeepAlive(all)
}

// forward does with a session's context what forwarding a notification does: a hook is put on it and taken off.
func forward(s *Session) {
	stop := context.AfterFunc(s.Context(), func() {})
	stop()
}

// heap is what lives, in bytes.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // what pools kept over the first
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func TestAllSessionsContextsEndWithTheirStore(t *testing.T) {
	st, open, _ := newStore(t, roomy)
	one, two := open(), open()
	st.Close(t.Context())
	for _, s := range []*Session{one, two} {
		select {
		case <-s.Context().Done():
		default:
			t.Error("a session's context goes on after Close")
		}
	}
}
