package server

import (
	"bytes"
	"strconv"
	"time"

	"github.com/outrigger-mesh/outrigger/bench/drive/wire"
)

// request is one message as it came: its slices are of the body.
type request struct {
	id      []byte // as it is written; nil for a notification
	method  []byte
	params  []byte
	name    []byte // of a tool or a prompt
	uri     []byte
	version []byte // _meta's protocol version; nil for the legacy era
	token   []byte // _meta's progress token, as it is written
	wants   []byte // a subscription's notifications
	knobs   knobs
}

// knobs are what a caller asks of a call of the null tool, in its arguments.
type knobs struct {
	owner, number []byte
	pad           int           // bytes
	delay         time.Duration // before the answer
	stream        bool          // answer with an event stream
	events        int           // before a streamed answer
	gap           time.Duration // before each event
}

// Bounds of what a call may ask for.
const (
	maxPad    = 32 << 20
	maxDelay  = 10 * time.Minute
	maxEvents = 1 << 20
)

// parse reads a message. It is false for what is not a JSON object.
func parse(body []byte) (r request, ok bool) {
	ok = members(body, func(key, value []byte) {
		switch string(key) {
		case "id":
			r.id = value
		case "method":
			r.method = unquoted(value)
		case "params":
			r.params = value
		}
	})
	if r.params != nil {
		members(r.params, r.param)
	}
	return r, ok
}

func (r *request) param(key, value []byte) {
	switch string(key) {
	case "name":
		r.name = unquoted(value)
	case "uri":
		r.uri = unquoted(value)
	case "notifications":
		r.wants = value
	case "arguments":
		members(value, r.knobs.argument)
	case "_meta":
		members(value, func(key, value []byte) {
			switch string(key) {
			case "io.modelcontextprotocol/protocolVersion":
				r.version = unquoted(value)
			case "progressToken":
				r.token = value
			}
		})
	}
}

// argument takes one argument. A prompt's arguments are strings, so that a number may stand in quotes.
func (k *knobs) argument(key, value []byte) {
	value = unquoted(value)
	switch string(key) {
	case "owner":
		k.owner = value
	case "n":
		k.number = value
	case "pad":
		k.pad = number(value, maxPad)
	case "delayUs":
		k.delay = time.Duration(number(value, int(maxDelay/time.Microsecond))) * time.Microsecond
	case "stream":
		k.stream = number(value, 1) == 1
	case "events":
		k.events = number(value, maxEvents)
	case "gapUs":
		k.gap = time.Duration(number(value, int(maxDelay/time.Microsecond))) * time.Microsecond
	}
}

// number is a whole number from 0 to most; 0 for what is none, and most for one above it.
func number(value []byte, most int) int {
	n, err := strconv.Atoi(string(value))
	if err != nil || n < 0 {
		return 0
	}
	return min(n, most)
}

// resource reads the knobs of a resource's URI, null://OWNER/NUMBER/PAD.
func resource(uri []byte) (k knobs, ok bool) {
	rest, ok := bytes.CutPrefix(uri, []byte(wire.NullURI))
	if !ok {
		return k, false
	}
	k.owner, rest, _ = bytes.Cut(rest, []byte("/"))
	var pad []byte
	k.number, pad, ok = bytes.Cut(rest, []byte("/"))
	k.pad = number(pad, maxPad)
	return k, ok
}
