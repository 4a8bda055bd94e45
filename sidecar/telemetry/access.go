package telemetry

import (
	"io"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"
)

const (
	// accessBuffer is how many bytes of access lines may wait for the writer, in each of two buffers.
	accessBuffer = 256 << 10
	// accessDelay is how long a line may wait.
	accessDelay = 200 * time.Millisecond
)

// Line is one call's access line.
type Line struct {
	Time     time.Time
	Binding  string
	Upstream string
	Era      string
	Method   string // the JSON-RPC method, or GET and DELETE, or "response"
	Name     []byte // tool, prompt, URI or task
	ID       []byte // the request id's token; nil when none
	Remote   string
	Status   int // HTTP
	Outcome  Outcome
	Reason   string // of a refusal or failure
	// Principal and Tenant are who called; empty where nobody was asked.
	Principal, Tenant string
	// Policy and Rule decided whether it might; AuditPolicy and AuditRule would have refused it.
	Policy, Rule, AuditPolicy, AuditRule string

	Took     time.Duration
	BytesIn  int64
	BytesOut int64
}

// AccessLog writes access lines as JSON, one per call, by a buffer that is written out every 200 ms or when half full.
// When the writer is so slow that the buffer is full, lines are dropped and counted: a log never holds up a call.
type AccessLog struct {
	w    io.Writer
	wake chan struct{} // capacity 1: that the buffer is no longer empty
	half chan struct{} // capacity 1: that it is half full
	quit chan struct{}
	done chan struct{}

	mu      sync.Mutex // guards below
	buf     []byte
	spare   []byte
	dropped int64
	clock   clock
}

// NewAccessLog starts an access log on w. Close ends it.
func NewAccessLog(w io.Writer) *AccessLog {
	l := &AccessLog{
		w: w, wake: make(chan struct{}, 1), half: make(chan struct{}, 1),
		quit: make(chan struct{}), done: make(chan struct{}),
		buf: make([]byte, 0, 8<<10), spare: make([]byte, 0, 8<<10),
	}
	go l.run()
	return l
}

// Close writes out what waits and ends the log; lines after it are lost.
func (l *AccessLog) Close() {
	close(l.quit)
	<-l.done
}

// Write adds a line. It never blocks on the writer.
//
// Hot: runs once per call. Allocates nothing in the long run (TestAccessLineDoesNotAllocate).
func (l *AccessLog) Write(line *Line) {
	l.mu.Lock()
	before := len(l.buf)
	if before > accessBuffer {
		l.dropped++
		l.mu.Unlock()
		return
	}
	l.buf = l.clock.appendLine(l.buf, line)
	after := len(l.buf)
	l.mu.Unlock()
	if before == 0 {
		signal(l.wake)
	}
	if before < accessBuffer/2 && after >= accessBuffer/2 {
		signal(l.half)
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (l *AccessLog) run() {
	defer close(l.done)
	for {
		select {
		case <-l.wake:
		case <-l.quit:
			l.flush()
			return
		}
		select {
		case <-time.After(accessDelay):
		case <-l.half:
		case <-l.quit:
		}
		l.flush()
	}
}

func (l *AccessLog) flush() {
	l.mu.Lock()
	out, dropped := l.buf, l.dropped
	l.buf, l.spare, l.dropped = l.spare[:0], nil, 0
	l.mu.Unlock()
	if dropped > 0 {
		out = append(out, `{"level":"WARN","msg":"access lines dropped","count":`...)
		out = strconv.AppendInt(out, dropped, 10)
		out = append(out, "}\n"...)
	}
	_, _ = l.w.Write(out) // there is nowhere left to say that the log cannot be written
	l.mu.Lock()
	l.spare = out[:0]
	l.mu.Unlock()
}

// clock writes times. It keeps the text of the second written last: most lines are of the same.
type clock struct {
	second int64 // Unix time; 0 before the first
	text   []byte
}

// append writes t in UTC with microseconds, as RFC 3339 has it.
func (c *clock) append(b []byte, t time.Time) []byte {
	if s := t.Unix(); s != c.second || c.text == nil {
		c.second, c.text = s, t.UTC().AppendFormat(c.text[:0], "2006-01-02T15:04:05.")
	}
	b = append(b, c.text...)
	us := t.Nanosecond() / 1000
	for unit := 100_000; unit > 0; unit /= 10 {
		b = append(b, byte('0'+us/unit%10))
	}
	return append(b, 'Z')
}

// appendLine writes one line in the form of slog's JSON handler.
func (c *clock) appendLine(b []byte, l *Line) []byte {
	b = append(b, `{"time":"`...)
	b = c.append(b, l.Time)
	b = append(b, `","level":"INFO","msg":"call"`...)
	b = appendField(b, `,"binding":"`, l.Binding)
	b = appendField(b, `,"upstream":"`, l.Upstream)
	b = appendField(b, `,"era":"`, l.Era)
	b = appendField(b, `,"method":"`, l.Method)
	b = appendField(b, `,"name":"`, l.Name)
	if l.ID != nil {
		b = append(append(b, `,"id":`...), l.ID...)
	}
	b = appendField(b, `,"remote":"`, l.Remote)
	b = appendNumber(b, `,"status":`, int64(l.Status))
	b = appendField(b, `,"outcome":"`, l.Outcome.String())
	b = appendField(b, `,"reason":"`, l.Reason)
	b = appendField(b, `,"principal":"`, l.Principal)
	b = appendField(b, `,"tenant":"`, l.Tenant)
	b = appendField(b, `,"policy":"`, l.Policy)
	b = appendField(b, `,"rule":"`, l.Rule)
	b = appendField(b, `,"audit_policy":"`, l.AuditPolicy)
	b = appendField(b, `,"audit_rule":"`, l.AuditRule)
	b = appendNumber(b, `,"duration_us":`, l.Took.Microseconds())
	b = appendNumber(b, `,"bytes_in":`, l.BytesIn)
	b = appendNumber(b, `,"bytes_out":`, l.BytesOut)
	return append(b, "}\n"...)
}

// appendNumber writes a member whose beginning, up to its value, is head.
func appendNumber(b []byte, head string, n int64) []byte {
	return strconv.AppendInt(append(b, head...), n, 10)
}

// maxField is the longest value, in bytes, that a line shows: values are strangers' words.
const maxField = 256

// plain are the bytes that stand for themselves in a JSON string.
var plain = func() (t [256]bool) {
	for c := range t {
		t[c] = c >= 0x20 && c != 0x7f && c != '"' && c != '\\'
	}
	return t
}()

// appendField writes a string member whose beginning, up to its value, is head; nothing when the value is empty.
func appendField[T string | []byte](b []byte, head string, v T) []byte {
	if len(v) == 0 {
		return b
	}
	b = append(b, head...)
	shown, done := v[:min(len(v), maxField)], 0
	for i := range len(shown) {
		c := shown[i]
		if plain[c] {
			continue
		}
		b = append(b, shown[done:i]...)
		if done = i + 1; c == '"' || c == '\\' {
			b = append(b, '\\', c)
		} else {
			b = append(b, '\\', 'u', '0', '0', "0123456789abcdef"[c>>4], "0123456789abcdef"[c&15])
		}
	}
	b = append(b, shown[done:]...)
	if len(v) > maxField {
		b = cutRune(b)
	}
	return append(b, '"')
}

// cutRune takes off a character that was cut through, if b ends in one.
func cutRune(b []byte) []byte {
	for !utf8.RuneStart(b[len(b)-1]) {
		b = b[:len(b)-1]
	}
	if b[len(b)-1] >= utf8.RuneSelf {
		b = b[:len(b)-1]
	}
	return b
}
