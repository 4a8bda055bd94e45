package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/outrigger-mesh/outrigger/bench/drive"
	"github.com/outrigger-mesh/outrigger/bench/null/server"
	"github.com/outrigger-mesh/outrigger/bench/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// startNull serves the null server until the test ends and returns its endpoint.
func startNull(t *testing.T) string {
	t.Helper()
	s, err := server.New(server.Config{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() { l.Close(); <-done; s.Close() })
	return "http://" + l.Addr().String() + "/mcp"
}

func TestTheCommandLineSaysWhatToDo(t *testing.T) {
	o, err := parse(strings.Fields("-era legacy -op stream -conns 3 -rate 10.5 -duration 2s -warm 1s -calls 5 -timeout 3s -answer-bytes 500 "+
		"-request-bytes 600 -delay 1ms -streamed 0.5 -events 2 -event-gap 3ms -tool t -args {} -uri u:x -expect e "+
		"-header A:b -header C:d:e -hold -json http://host/mcp"), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	c := o.config
	if c.Era != "legacy" || c.Op != drive.Stream || c.Conns != 3 || c.Rate != 10.5 || c.Duration != 2*time.Second ||
		c.Warm != time.Second || c.Calls != 5 || c.Timeout != 3*time.Second || c.AnswerBytes != 500 || c.RequestBytes != 600 ||
		c.Delay != time.Millisecond || c.Streamed != 0.5 || c.Events != 2 || c.EventGap != 3*time.Millisecond ||
		c.Tool != "t" || string(c.Args) != "{}" || c.URI != "u:x" || c.Expect != "e" ||
		c.Header.Get("A") != "b" || c.Header.Get("C") != "d:e" || c.URL != "http://host/mcp" || !o.hold || !o.json {
		t.Errorf("parse returned %+v", o)
	}
}

func TestAWrongCommandLineIsRefused(t *testing.T) {
	for _, args := range []string{"", "a b", "-conns x http://h", "-header nonsense http://h", "-era new http://h", "ftp://h",
		"-op session http://h", "-hold http://h", "-what http://h", "-args [] http://h"} {
		if _, err := parse(strings.Fields(args), io.Discard); err == nil || errors.Is(err, flag.ErrHelp) {
			t.Errorf("parse(%q) = %v, want an error", args, err)
		}
	}
}

func TestHelpExplainsEveryFlag(t *testing.T) {
	var out bytes.Buffer
	if _, err := parse([]string{"-help"}, &out); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("parse(-help) = %v, want flag.ErrHelp", err)
	}
	for _, want := range strings.Fields("usage: -era -op -conns -rate -duration -warm -calls -answer-bytes -delay -streamed -events " +
		"-event-gap -request-bytes -tool -args -uri -expect -expect-file -header -timeout -hold -json Exit") {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the help does not mention %s:\n%s", want, &out)
		}
	}
}

func TestOneLineOfJSONSaysWhatWasFound(t *testing.T) {
	o, err := parse([]string{"-json", "-calls", "20", "-conns", "2", startNull(t)}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if status := execute(t.Context(), o, &out, io.Discard, false); status != exitOK {
		t.Errorf("exit status %d, want %d", status, exitOK)
	}
	var l record.Load
	if err := json.Unmarshal(out.Bytes(), &l); err != nil || l.Calls != 20 || strings.Count(out.String(), "\n") != 1 {
		t.Errorf("printed %q, %v; want one line with 20 calls", &out, err)
	}
}

func TestTheSummaryIsForReaders(t *testing.T) {
	o, err := parse([]string{"-rate", "1000", "-calls", "50", "-streamed", "1", "-events", "1", startNull(t)}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if status := execute(t.Context(), o, &out, io.Discard, false); status != exitOK {
		t.Errorf("exit status %d, want %d", status, exitOK)
	}
	for _, want := range []string{"50 right, 0 failed, 0 wrong", "1000.0 intended", "events      50", "latency", "first event", "own cost"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the summary does not say %q:\n%s", want, &out)
		}
	}
}

func TestAFailureIsTheExitStatus(t *testing.T) {
	for name, args := range map[string][]string{
		"a call that failed": {"-calls", "2", "-tool", "unknown", startNull(t)},
		"no server":          {"-calls", "2", "http://" + nobody(t) + "/mcp"},
	} {
		o, err := parse(args, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		var errors bytes.Buffer
		var out bytes.Buffer
		if status := execute(t.Context(), o, &out, &errors, false); status != exitFailures {
			t.Errorf("%s: exit status %d, want %d; %s%s", name, status, exitFailures, &out, &errors)
		}
		if !strings.Contains(out.String()+errors.String(), "first ") && errors.Len() == 0 {
			t.Errorf("%s: nothing says why: %s", name, &out)
		}
	}
}

// nobody is an address where nobody listens.
func nobody(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestWhatIsHeldIsSaidAndKeptUntilTheEnd(t *testing.T) {
	o, err := parse([]string{"-op", "stream", "-conns", "7", "-hold", "-json", startNull(t)}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	status := make(chan int, 1)
	go func() {
		status <- execute(ctx, o, w, io.Discard, false)
		w.Close()
	}()
	lines := json.NewDecoder(r)
	var held struct{ Holding int }
	if err := lines.Decode(&held); err != nil || held.Holding != 7 {
		t.Errorf("the first line says %+v, %v; want 7", held, err)
	}
	cancel()
	var l record.Load
	if err := lines.Decode(&l); err != nil || l.Calls != 7 {
		t.Errorf("the last line says %+v, %v; want 7 calls", l, err)
	}
	r.Close()
	if got := <-status; got != exitOK {
		t.Errorf("exit status %d, want %d", got, exitOK)
	}
}

func TestATerminalShowsHowItGoes(t *testing.T) {
	o, err := parse([]string{"-duration", "1300ms", startNull(t)}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var out, progress bytes.Buffer
	execute(t.Context(), o, &out, &progress, true)
	if !strings.Contains(progress.String(), "measuring: ") || !strings.HasSuffix(progress.String(), "\r\033[K") {
		t.Errorf("progress was %q, want a line that is taken away at the end", &progress)
	}
}
