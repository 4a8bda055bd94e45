package proxy

import "net/http"

// lasting is an answer that does little but wait, perhaps for weeks: a listen's, or a GET's.
type lasting interface {
	// step sends what there is. It reports whether there may be more, which await waits for; else the answer is over, with
	// serve's error.
	step() (more bool, err error)
	// await calls wake once, in a goroutine, when step has something to do. It does not wait itself.
	await(wake func())
	// end comes after the last step.
	end()
}

// rester is a ResponseWriter whose handler may return while its answer goes on (package http1).
type rester interface {
	http.ResponseWriter
	Rest(then func())
	Resume(f func())
}

// last carries an answer to its end, or, where the server allows it, to its next wait: then it goes on without this
// goroutine, and the exchange must not be used by its caller any more if it rests.
func (x *exchange) last(l lasting) error {
	if w, ok := x.w.(rester); ok {
		return x.goOn(w, l)
	}
	defer l.end()
	for {
		if more, err := l.step(); !more {
			return err
		}
		woken := make(chan struct{})
		l.await(func() { close(woken) })
		<-woken
	}
}

// goOn takes the next step of an answer, and lets it rest or ends it.
func (x *exchange) goOn(w rester, l lasting) error {
	defer func() {
		if !x.rests {
			l.end()
		}
	}()
	more, err := l.step()
	if x.rests = more; more {
		x.r = nil
		w.Rest(func() { l.await(func() { w.Resume(func() { x.resume(w, l) }) }) })
	}
	return err
}

// resume is ServeHTTP for an answer that rested.
func (x *exchange) resume(w rester, l lasting) {
	x.rests = false
	defer x.release()
	x.conclude(x.goOn(w, l))
}
