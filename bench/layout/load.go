package layout

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/outrigger-mesh/outrigger/bench/record"
)

// statusFailed is the load generator's exit status when calls failed, or connections could not be opened at all.
const statusFailed = 1

// Load runs the load generator with -json and these arguments, the URL last, and returns what it found. That calls
// failed or were answered wrongly is in what it found, not an error; connections that could not be opened are one failure.
func (l *Layout) Load(ctx context.Context, args ...string) (record.Load, error) {
	h, err := l.load(args)
	if err != nil {
		return record.Load{}, err
	}
	select {
	case <-h.process.done:
	case <-ctx.Done():
	}
	found, err := h.Stop()
	if err != nil && ctx.Err() == nil && h.process.cmd.ProcessState.ExitCode() == statusFailed {
		return record.Load{Failures: 1, FirstFailure: tail(h.process.Log)}, nil
	}
	return found, err
}

// Held is a load generator that keeps connections, sessions or streams open.
type Held struct {
	Holding int // how many

	process *Process
	lines   chan []byte   // of its output
	read    chan struct{} // closed when all of it was read
	last    []byte        // its last line; read after read
}

// Hold runs the load generator with -hold, and returns when all that it shall hold is open.
func (l *Layout) Hold(ctx context.Context, args ...string) (*Held, error) {
	h, err := l.load(append([]string{"-hold"}, args...))
	if err != nil {
		return nil, err
	}
	select {
	case line := <-h.lines:
		var holding struct{ Holding int }
		if err := json.Unmarshal(line, &holding); err == nil && holding.Holding > 0 {
			h.Holding = holding.Holding
			return h, nil
		}
		err = fmt.Errorf("the load generator said %q, want what it holds", line)
	case <-h.read:
		err = errors.New("the load generator ended before it held anything")
	case <-ctx.Done():
		err = ctx.Err()
	}
	h.process.Stop()
	return nil, fmt.Errorf("%w (its log is %s)", err, h.process.Log)
}

// Process is the load generator's.
func (h *Held) Process() *Process { return h.process }

// Stop ends the load generator and returns what it found.
func (h *Held) Stop() (record.Load, error) {
	stopErr := h.process.Stop()
	<-h.read
	var found record.Load
	if err := json.Unmarshal(h.last, &found); err != nil || !bytes.Contains(h.last, []byte(`"calls"`)) {
		return found, errors.Join(stopErr, fmt.Errorf("the load generator found nothing: %w; %s", h.process.endedWith(), tail(h.process.Log)))
	}
	return found, stopErr
}

// load starts the load generator, on the cores where no proxy is.
func (l *Layout) load(args []string) (*Held, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	p, err := l.launch(spec{name: "load", cores: l.pins.Rest, stdout: w,
		command: append([]string{l.programs.Load, "-json"}, args...)})
	if err != nil {
		r.Close()
		return nil, fmt.Errorf("start the load generator: %w", err)
	}
	h := &Held{process: p, lines: make(chan []byte, 1), read: make(chan struct{})}
	go h.scan(r)
	return h, nil
}

// scan reads the load generator's output: the first line goes to lines, the last is kept.
func (h *Held) scan(r *os.File) {
	defer close(h.read)
	defer r.Close()
	lines := bufio.NewReader(r)
	for first := true; ; first = false {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		if first {
			h.lines <- line
		}
		h.last = line
	}
}

// tail is the end of a log, for an error message.
func tail(log string) string {
	f, err := os.Open(log)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	const most = 500
	if info, err := f.Stat(); err == nil && info.Size() > most {
		f.Seek(-most, io.SeekEnd)
	}
	text, _ := io.ReadAll(f)
	return string(bytes.TrimSpace(text))
}
