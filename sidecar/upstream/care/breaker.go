package care

import "time"

// phase is what a breaker does with calls.
//
//	closed ──faults in a row──▶ open ──retry time, ask──▶ half-open ──answer──▶ closed
//	   ▲                        │  ▲                       │  │  ▲
//	   └───────proof────────────┘  └──fault, no outcome────┘  └──┘ ask, when the trial takes too long
//	   └───────proof──────────────────────────────────────────┘
//
// A proof is a check that succeeded, whether it was the trial or not.
//
// A doubt is a call's answer that may be the call's own doing, as a 500 is that one tool gives for one argument: who calls
// that again and again must not close the server to everybody else. Doubts count with the faults, but none of them opens
// the breaker: what does is the next fault, as of the check that is made because of them, and a proof ends them. While
// another endpoint can stand in, a doubt is a fault (endpoint.settle).
//
// A late call may be the call's own doing too, but while a server hangs nobody should wait for another: it is a fault. What
// it opened is unsure, so the next call has a check made before it is refused (endpoint.admitSoon).
type phase uint8

const (
	closed   phase = iota // calls pass
	open                  // none does
	halfOpen              // one, the trial, is under way
)

// mostRetryAfter is where doubling ends.
const mostRetryAfter = time.Minute

// breaker is an endpoint's state in the eyes of those who would call it. Whoever was let through has a ticket, the epoch
// of that moment. A ticket of another epoch tells of what is over, and changes nothing.
type breaker struct {
	// Set when it is made, never changed.
	limit      int           // faults in a row
	retryAfter time.Duration // the first; above zero
	trialTime  time.Duration // until another may try
	checked    bool          // there are checks; without, a doubt is a fault

	phase   phase
	epoch   uint64    // grows with every move that makes former tickets stale
	faults  int       // in a row, while closed
	doubts  int       // likewise, since the last proof
	opened  int       // how often in a row it was opened without a call that succeeded between
	since   time.Time // half-open: when the trial began
	retryAt time.Time // open and half-open: when the next may try
	unsure  bool      // a check may show at once that the endpoint is well: the last fault was of the connection, or a late call
}

// event is what a breaker is told.
type event uint8

const (
	ask        event = iota // somebody would call
	answered                // an answer has begun
	succeeded               // a call came to its end
	failed                  // a fault of the endpoint's
	broke                   // the same, of the connection
	late                    // a call took too long: a fault, unless it is the call's own doing
	doubted                 // an answer that may be the endpoint's fault, or the call's
	noOutcome               // a call ended that says nothing about the endpoint
	proved                  // a check succeeded
	disproved               // a check that was not let through failed
	brokeAgain              // the same, of the connection
	nothing                 // such a check said nothing
)

// move is an event with what belongs to it.
type move struct {
	event  event
	ticket uint64        // of what tells a call's outcome
	now    time.Time     // of ask and of what may open the breaker
	spread time.Duration // likewise: how much of each second of a pause is left out
}

// step is the whole of a breaker's behaviour. passes is the answer to ask: the ticket is next.epoch.
func (b breaker) step(m move) (next breaker, passes bool) {
	switch m.event {
	case ask:
		return b.ask(m.now)
	case proved:
		b.doubts = 0
		if b.phase != closed {
			b.becomeClosed(0)
			b.epoch++
		}
		return b, false
	case disproved, brokeAgain:
		b.unsure = m.event == brokeAgain
		return b, false
	case nothing:
		return b, false
	}
	switch {
	case m.ticket != b.epoch || b.phase == open: // nobody was let through since it opened
	case m.event == succeeded:
		b.becomeClosed(0)
		b.opened = 0
	case m.event == answered && b.phase == halfOpen:
		b.becomeClosed(b.limit - 1) // an answer that does not come to its end opens it again
	case m.event == noOutcome && b.phase == halfOpen:
		b.phase, b.retryAt = open, m.now // it was no trial
		b.epoch++
	case m.event == doubted && b.checked && b.phase == closed:
		b.doubts++
	case m.event == failed || m.event == broke || m.event == late || m.event == doubted:
		b.unsure = m.event == broke || m.event == late && b.phase == closed && b.checked
		if b.faults++; b.phase == halfOpen || b.faults+b.doubts >= b.limit {
			b.becomeOpen(m)
		}
	}
	return b, false
}

func (b breaker) ask(now time.Time) (next breaker, passes bool) {
	switch {
	case b.phase == closed:
		return b, true
	case now.Before(b.retryAt):
		return b, false
	}
	b.phase, b.since, b.retryAt = halfOpen, now, now.Add(b.trialTime)
	b.epoch++
	return b, true
}

func (b *breaker) becomeClosed(faults int) {
	b.phase, b.faults, b.doubts, b.retryAt, b.since = closed, faults, 0, time.Time{}, time.Time{}
}

func (b *breaker) becomeOpen(m move) {
	pause := min(b.retryAfter<<min(b.opened, 16), max(b.retryAfter, mostRetryAfter))
	b.phase, b.retryAt = open, m.now.Add(pause-time.Duration(pause.Seconds()*float64(m.spread)))
	b.opened++
	b.faults, b.doubts = 0, 0
	b.epoch++
}

// calm reports whether a success would change nothing.
func (b *breaker) calm() bool {
	return b.phase == closed && b.faults == 0 && b.doubts == 0 && b.opened == 0
}
