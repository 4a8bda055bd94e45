package stdio

import (
	"io"
	"log/slog"
	"os"

	"golang.org/x/time/rate"
)

const (
	stderrLine  = 4 << 10 // longest line logged, in bytes
	stderrRate  = 20      // lines a second
	stderrBurst = 100     // lines at once
)

// lineLog logs a process's lines, so many a second, and says how many it left out.
type lineLog struct {
	log     *slog.Logger
	message string
	limit   *rate.Limiter
	dropped int
}

func newLineLog(log *slog.Logger, message string) *lineLog {
	return &lineLog{log: log, message: message, limit: rate.NewLimiter(stderrRate, stderrBurst)}
}

// add logs one line, cut to stderrLine bytes.
func (l *lineLog) add(text []byte, cut bool) {
	if !l.limit.Allow() {
		l.dropped++
		return
	}
	l.flush()
	if len(text) > stderrLine {
		text, cut = text[:stderrLine], true
	}
	if cut {
		l.log.Info(l.message, "line", string(text), "cut", true)
		return
	}
	l.log.Info(l.message, "line", string(text))
}

// flush says how many lines were left out since it last did.
func (l *lineLog) flush() {
	if l.dropped > 0 {
		l.log.Warn(l.message+": lines left out", "dropped", l.dropped)
		l.dropped = 0
	}
}

// logStderr reads a process's standard error to its end, so that the process never waits for its log.
func logStderr(stderr *os.File, log *slog.Logger) {
	defer stderr.Close()
	lines, out := newLineReader(stderr, stderrLine), newLineLog(log, "server wrote to standard error")
	defer out.flush()
	for {
		l, err := lines.next()
		if err != nil {
			if err != io.EOF && !os.IsTimeout(err) {
				log.Warn("standard error is lost", "error", err)
			}
			return
		}
		if len(l.data) > 0 {
			out.add(l.data, l.long)
		}
	}
}
