package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/bench/drive"
	"github.com/outrigger-mesh/outrigger/bench/drive/wire"
)

// options are the command line.
type options struct {
	config drive.Config
	hold   bool
	json   bool
}

// usage is what -help says before the flags.
const usage = `usage: load [flags] URL

Load makes calls of the MCP server at URL and checks every answer.

  load -conns 64 -duration 30s http://127.0.0.1:9000/mcp
      64 connections to the null server (bench/null), or to a proxy before it, each with one call in flight.
  load -conns 64 -rate 5000 http://127.0.0.1:9000/mcp
      5,000 calls a second, whatever the server makes of them; latency counts from when a call was due.
  load -era legacy -tool echo -args '{"text":"hello"}' -expect hello -header 'Authorization: Bearer x' https://host/mcp
      any other server: a tool of its own, and a text that each answer must hold.
  load -op stream -conns 10000 -hold http://127.0.0.1:9000/mcp
      10,000 idle streams, until Ctrl-C.

Without -rate each connection makes its next call when the last is answered (a closed loop: what the server can do).
With it calls fall due at fixed times, and the next free connection makes them (an open loop: what callers see). Those
that are due wait for a connection; there is room for what falls due in one -timeout. What finds no room, or still waits
when the time is up, is counted as never sent.

Every answer is checked. Of the null server every byte is known, and holds the connection's name and the call's number.
Of any other server an answer is right when its id is the call's, when it has a result that is no error, and when it
holds -expect. What is wrong or fails is counted, the first of them said in full; a connection that broke is opened
again after 10 ms, then 20 ms, up to a second.

Exit status: 0 when no call failed and none was wrong, 1 otherwise, 2 for wrong flags.

`

// parse reads the command line. flag.ErrHelp means that help was asked for and written to w.
func parse(args []string, w io.Writer) (o options, err error) {
	c := &o.config
	f := flag.NewFlagSet("load", flag.ContinueOnError)
	f.SetOutput(w)
	f.Usage = func() {
		fmt.Fprint(w, usage)
		f.PrintDefaults()
	}
	f.StringVar(&c.Era, "era", wire.Stateless, "stateless (MCP 2026-07-28) or legacy (2025-11-25, a session for each connection)")
	op := f.String("op", string(drive.Call), "call (tools/call), list (tools/list), read (resources/read), prompt (prompts/get),\n"+
		"stream (open a subscription or a GET stream), session (legacy: initialize, initialized, a call, DELETE)")
	f.IntVar(&c.Conns, "conns", 1, "connections, each with one call in flight")
	f.Float64Var(&c.Rate, "rate", 0, "open loop: calls a second over all connections; 0 is a closed loop")
	f.DurationVar(&c.Duration, "duration", 0, "how long to measure (default 10s; with -hold until SIGTERM or SIGINT)")
	f.DurationVar(&c.Warm, "warm", 0, "how long to call before that, not counted")
	f.Int64Var(&c.Calls, "calls", 0, "measure so many calls instead")
	f.DurationVar(&c.Timeout, "timeout", 10*time.Second, "of one call, connecting included; up to a sixteenth shorter")
	nullFlags(f, c)
	arguments := f.String("args", "", "any other server: the tool's or prompt's arguments, a JSON object")
	f.StringVar(&c.Tool, "tool", wire.NullTool, "the tool to call, or the prompt to get. One named null, also with a prefix\n"+
		"that ends in . _ - / or :, is the null server's unless there are -args")
	f.StringVar(&c.URI, "uri", "", "any other server: the resource to read")
	f.StringVar(&c.Expect, "expect", "", "what every answer must hold")
	f.Func("expect-file", "a file with a JSON value that every answer must hold whole, byte for byte", func(name string) (err error) {
		c.Value, err = os.ReadFile(name)
		return err
	})
	c.Header = http.Header{}
	f.Var(headerFlag(c.Header), "header", "'Name: value', sent with every request; may be repeated")
	f.BoolVar(&o.hold, "hold", false, "with -op stream or session: open one for each of -conns, print {\"holding\":N}, keep them")
	f.BoolVar(&o.json, "json", false, "print one line of JSON (record.Load) instead of a summary")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() != 1 {
		return o, errors.New("one URL is needed; load -help says more")
	}
	c.URL, c.Op = f.Arg(0), drive.Op(*op)
	if *arguments != "" {
		c.Args = json.RawMessage(*arguments)
	}
	if o.hold && c.Op != drive.Stream && c.Op != drive.Session {
		return o, fmt.Errorf("-hold needs -op %s or %s", drive.Stream, drive.Session)
	}
	return o, c.Validate()
}

// nullFlags are those that say what the null server shall do.
func nullFlags(f *flag.FlagSet, c *drive.Config) {
	f.IntVar(&c.AnswerBytes, "answer-bytes", 250, "null server: size of an answer's JSON")
	f.IntVar(&c.RequestBytes, "request-bytes", 350, "null server: size of a call's body, at least")
	f.DurationVar(&c.Delay, "delay", 0, "null server: how long it waits before an answer")
	f.Float64Var(&c.Streamed, "streamed", 0, "null server: share of answers that come as event streams, 0 to 1")
	f.IntVar(&c.Events, "events", 0, "null server: progress events before a streamed answer")
	f.DurationVar(&c.EventGap, "event-gap", 0, "null server: how long it waits before each of them")
}

// headerFlag adds header lines.
type headerFlag http.Header

func (h headerFlag) String() string { return "" }

func (h headerFlag) Set(line string) error {
	name, value, ok := strings.Cut(line, ":")
	if name = strings.TrimSpace(name); !ok || name == "" || strings.ContainsAny(line, "\r\n") {
		return fmt.Errorf("%q is not 'Name: value'", line)
	}
	http.Header(h).Add(name, strings.TrimSpace(value))
	return nil
}
