package drive

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/bench/drive/wire"
)

// Op is what a call is.
type Op string

// What a call can be.
const (
	Call    Op = "call"    // tools/call
	List    Op = "list"    // tools/list
	Read    Op = "read"    // resources/read
	Prompt  Op = "prompt"  // prompts/get
	Stream  Op = "stream"  // open a subscription (stateless) or a GET stream (legacy), and close it
	Session Op = "session" // legacy: initialize, initialized, a tools/call, DELETE
)

// ops are all of them, in the order of messages.
var ops = []Op{Call, List, Read, Prompt, Stream, Session}

// Config is what a Driver does. The zero value of a field is its default where one is given.
type Config struct {
	URL   string  // required: the endpoint, http or https
	Era   string  // default wire.Stateless
	Op    Op      // default Call
	Conns int     // connections; default 1. In the legacy era each has a session
	Rate  float64 // calls a second over all connections, due at fixed times; 0: a closed loop

	Duration time.Duration // of what is measured; default 10s, unless Calls is set. Of Hold: default none
	Warm     time.Duration // before it, not counted
	Calls    int64         // stop after so many; 0: after Duration
	Timeout  time.Duration // of one call, connecting included; default 10s

	// Of the null server's tool, prompt and resources.
	AnswerBytes  int           // size of an answer's JSON; default 250
	RequestBytes int           // size of a request's body, at least; default 350
	Delay        time.Duration // before an answer
	Streamed     float64       // share of answers that come as event streams, 0 to 1
	Events       int           // before each streamed answer
	EventGap     time.Duration // before each of them

	// Of any other server.
	Tool   string          // or prompt; default "null"
	Args   json.RawMessage // its arguments, an object
	URI    string          // of the resource to read
	Expect string          // what every answer must hold
	Value  json.RawMessage // that every answer must hold whole, byte for byte: the array of a long list

	Header http.Header // sent with every request
	TLS    *tls.Config // for https; nil: the system's certificates
}

// Limits of what a Driver takes on.
const (
	MaxConns = 100_000
	MaxRate  = 10_000_000
	MaxBytes = 32 << 20 // of a request or an answer
)

// withDefaults is c with its defaults filled in.
func (c Config) withDefaults() Config {
	set(&c.Era, wire.Stateless)
	set(&c.Op, Call)
	set(&c.Conns, 1)
	set(&c.Timeout, 10*time.Second)
	set(&c.AnswerBytes, 250)
	set(&c.RequestBytes, 350)
	set(&c.Tool, wire.NullTool)
	return c
}

// set gives a field its default when it has no value.
func set[T comparable](field *T, def T) {
	var zero T
	if *field == zero {
		*field = def
	}
}

// Validate reports everything that is wrong with c.
func (c Config) Validate() error {
	c = c.withDefaults()
	u, err := url.Parse(c.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		err = fmt.Errorf("%q is not an http(s) URL", c.URL)
	}
	errs := []error{err}
	wrong := func(is bool, format string, args ...any) {
		if is {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	wrong(c.Era != wire.Stateless && c.Era != wire.Legacy, "era %q is neither %s nor %s", c.Era, wire.Stateless, wire.Legacy)
	wrong(!slices.Contains(ops, c.Op), "op %q is none of %v", c.Op, ops)
	wrong(c.Op == Session && c.Era == wire.Stateless, "op session: the stateless era has no sessions")
	wrong(c.Conns < 1 || c.Conns > MaxConns, "%d connections: not a number from 1 to %d", c.Conns, MaxConns)
	wrong(!(c.Rate >= 0 && c.Rate <= MaxRate), "rate %v is not from 0 to %d", c.Rate, MaxRate)
	wrong(c.Streamed < 0 || c.Streamed > 1, "streamed %v is not a share from 0 to 1", c.Streamed)
	wrong(c.Calls < 0 || c.Events < 0, "a number of calls or events below 0")
	wrong(min(c.Duration, c.Warm, c.Timeout, c.Delay, c.EventGap) < 0, "a duration below 0")
	wrong(c.Delay+time.Duration(c.Events)*c.EventGap >= c.Timeout, "the answer comes no sooner than the timeout, %v", c.Timeout)
	wrong(c.AnswerBytes < minAnswer || c.AnswerBytes > MaxBytes, "answers of %d bytes: not from %d to %d",
		c.AnswerBytes, minAnswer, MaxBytes)
	wrong(c.RequestBytes < 0 || c.RequestBytes > MaxBytes, "requests of %d bytes: not from 0 to %d", c.RequestBytes, MaxBytes)
	wrong(c.Args != nil && (!json.Valid(c.Args) || !strings.HasPrefix(strings.TrimSpace(string(c.Args)), "{")),
		"arguments %.40q are not a JSON object", c.Args)
	wrong(c.Value != nil && !json.Valid(c.Value), "the value %.40q that is expected is not JSON", c.Value)
	return errors.Join(errs...)
}

// minAnswer is the smallest answer: the longest form of one with nothing added to its text.
const minAnswer = 170

// ofNull reports whether the server is the null server as far as c's operation goes, so that answers are known to the
// byte. A federation may have put a prefix before the tool's name.
func (c Config) ofNull() bool {
	switch c.Op {
	case Read:
		return c.URI == ""
	case List, Stream:
		return false
	}
	name, ok := strings.CutSuffix(c.Tool, wire.NullTool)
	return ok && c.Args == nil && (name == "" || strings.ContainsAny(name[len(name)-1:], "._-/:"))
}
