package stream

import "time"

// These are the phases of one type on one stream, and all their moves. Any other answer is stale and changes nothing.
//
//	idle ──push──▶ sent ──ack───▶ current ──push──▶ sent
//	                 │└───nack──▶ refused ──push──▶ sent
//	                 └────push──▶ sent, and answers to the push before are stale
type phase uint8

const (
	idle phase = iota
	sent
	current
	refused
)

// exchange is how far the conversation about one type has come.
type exchange struct {
	phase phase
	nonce string    // of the last push
	at    time.Time // of the last push
	offer *offer    // of the last push
}

// event is a push, or the sidecar's answer to one.
type event struct {
	kind  eventKind
	nonce string
	at    time.Time
	offer *offer // of a push
}

type eventKind uint8

const (
	push eventKind = iota
	ack
	nack
)

// step returns the exchange after an event, and whether the event counted: a stale answer does not.
func (x exchange) step(e event) (next exchange, counts bool) {
	switch {
	case e.kind == push:
		return exchange{phase: sent, nonce: e.nonce, at: e.at, offer: e.offer}, true
	case x.phase != sent || e.nonce != x.nonce:
		return x, false
	case e.kind == nack:
		x.phase = refused
		return x, true
	default:
		x.phase = current
		return x, true
	}
}
