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
	l.buf = appendLine(l.buf, line)
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

// appendLine writes one line in the form of slog's JSON handler.
func appendLine(b []byte, l *Line) []byte {
	b = append(b, `{"time":"`...)
	b = l.Time.UTC().AppendFormat(b, "2006-01-02T15:04:05.000000Z")
	b = append(b, `","level":"INFO","msg":"call"`...)
	b = appendField(b, "binding", l.Binding)
	b = appendField(b, "upstream", l.Upstream)
	b = appendField(b, "era", l.Era)
	b = appendField(b, "method", l.Method)
	b = appendField(b, "name", l.Name)
	if l.ID != nil {
		b = append(append(b, `,"id":`...), l.ID...)
	}
	b = appendField(b, "remote", l.Remote)
	b = appendNumber(b, "status", int64(l.Status))
	b = appendField(b, "outcome", l.Outcome.String())
	b = appendField(b, "reason", l.Reason)
	b = appendNumber(b, "duration_us", l.Took.Microseconds())
	b = appendNumber(b, "bytes_in", l.BytesIn)
	b = appendNumber(b, "bytes_out", l.BytesOut)
	return append(b, "}\n"...)
}

func appendNumber(b []byte, key string, n int64) []byte {
	b = append(append(append(b, `,"`...), key...), `":`...)
	return strconv.AppendInt(b, n, 10)
}

// appendField writes a string member, unless it is empty. Values are cut at maxField bytes: they are strangers' words.
func appendField[T string | []byte](b []byte, key string, v T) []byte {
	const maxField = 256
	if len(v) == 0 {
		return b
	}
	b = append(append(append(b, `,"`...), key...), `":"`...)
	for i := 0; i < len(v) && i < maxField; i++ {
		switch c := v[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < 0x20 || c == 0x7f:
			b = append(b, `\u00`...)
			b = append(b, "0123456789abcdef"[c>>4], "0123456789abcdef"[c&15])
		default:
			b = append(b, c)
		}
	}
	if len(v) > maxField {
		for !utf8.RuneStart(b[len(b)-1]) { // do not leave half a character
			b = b[:len(b)-1]
		}
		if b[len(b)-1] >= utf8.RuneSelf {
			b = b[:len(b)-1]
		}
	}
	return append(b, '"')
}
