package stdio

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream/mailbox"
)

func TestUrgentOvertakesWhatIsQueued(t *testing.T) {
	o := newOutbox()
	first, second := &parcel{data: []byte("1")}, &parcel{data: []byte("2")}
	o.put(first)
	o.put(second)
	o.putUrgent([]byte("!"))
	if !o.withdraw(second) {
		t.Error("a parcel that is queued could not be withdrawn")
	}
	for _, want := range []string{"!", "1"} {
		if got := o.next(); string(got.data) != want {
			t.Errorf("next is %q, want %q", got.data, want)
		}
	}
	if o.withdraw(first) {
		t.Error("a parcel that is on its way was withdrawn")
	}
	o.close()
	if got := o.next(); got != nil {
		t.Errorf("after close next is %q", got.data)
	}
}

func TestAnOutboxIsBounded(t *testing.T) {
	o := newOutbox()
	if !o.put(&parcel{data: make([]byte, queuedBytes+1)}) {
		t.Error("a single large message was refused")
	}
	if o.put(&parcel{data: []byte("x")}) {
		t.Error("a message above the size bound was taken")
	}
	o.next()
	for i := range queuedMost + 1 {
		if taken := o.put(&parcel{}); taken != (i < queuedMost) {
			t.Errorf("message %d taken: %v", i, taken)
		}
	}
	for i := range urgentMost + 1 {
		if taken := o.putUrgent(nil); taken != (i < urgentMost) {
			t.Errorf("urgent message %d taken: %v", i, taken)
		}
	}
}

// A server's request that finds no room ends the stream, and is answered in the end.
func TestAServersRequestIsNeverDropped(t *testing.T) {
	s := &ownSession{inbox: newInbox(slog.New(slog.DiscardHandler))}
	p := bare(s)
	k, err := p.begin(t.Context(), scan(t, toolCall("1", "x", "{}")), order{owner: s})
	if err != nil {
		t.Fatal(err)
	}
	drain := func(b *mailbox.Box) {
		t.Helper()
		for i := range mailbox.Most {
			if data, _, err := b.Next(nil); err != nil {
				t.Fatalf("message %d is %q, %v", i, data, err)
			}
		}
		_, _, err := b.Next(nil)
		wantKind(t, err, upstream.Overloaded)
	}
	for i := range 2*mailbox.Most + 1 {
		p.receive(line{data: fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":"elicitation/create","params":{}}`, i)})
	}
	drain(k.box)
	drain(s.box)
	p.out.withdraw(k.parcel)
	want := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"error":{"code":-32601,"message":"no client to ask"}}`, 2*mailbox.Most)
	if got := strings.TrimSpace(string(p.out.next().data)); got != want {
		t.Errorf("the server heard %s, want %s", got, want)
	}
}

// Lesson L18: what arrived is given at once, and the response ends the stream without a pause.
func TestNothingWaitsForQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &call{box: mailbox.New(slog.New(slog.DiscardHandler), heldBytes), pipe: &pipe{}}
		began := time.Now()
		go func() {
			k.box.Put([]byte("progress"))
			k.box.Finish([]byte("response"))
		}()
		a, err := k.answer()
		if err != nil {
			t.Fatal(err)
		}
		if got := messages(t, a); strings.Join(got, " ") != "progress response" {
			t.Errorf("the messages are %q", got)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("it took %v of waiting, want none", took)
		}
	})
}

func TestBackOffGrowsWithJitterAndIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var starts []time.Time
		failed := errors.New("no")
		s := newSupervisor("x", slog.New(slog.DiscardHandler), func(context.Context) (*pipe, error) {
			starts = append(starts, time.Now())
			return nil, failed
		})
		for began := time.Now(); time.Since(began) < 10*time.Minute; time.Sleep(time.Second) {
			if _, err := s.get(t.Context(), time.Hour); !errors.Is(err, failed) {
				t.Fatalf("get ended with %v, want the last launch's error", err)
			}
		}
		s.close(t.Context())
		for i := 1; i < len(starts); i++ {
			if d := starts[i].Sub(starts[i-1]); d >= min(mostDelay, firstDelay<<min(i-1, 10)) {
				t.Errorf("start %d came %v after the one before", i, d)
			}
		}
		if n := len(starts); n < 20 || n > 200 {
			t.Errorf("%d starts in 10 minutes", n)
		}
	})
}

// splitLines is what lineReader promises, said plainly.
func splitLines(data []byte, most int) (all []line) {
	for len(data) > 0 {
		text, rest, _ := bytes.Cut(data, []byte("\n"))
		long := len(text) > most
		all = append(all, line{data: bytes.TrimSuffix(text, []byte("\r")), long: long})
		data = rest
	}
	return all
}

func FuzzLines(f *testing.F) {
	f.Add([]byte("a\nb\r\n\n\nlast"), 10)
	f.Add(bytes.Repeat([]byte("0123456789"), 100), 50)
	f.Add([]byte("0123456789abcdef\nshort\n0123456789abcde\r\n"), 15)
	f.Fuzz(func(t *testing.T, data []byte, most int) {
		if most < 1 || most > 1<<20 {
			return
		}
		// A buffer of the smallest size, so that short inputs meet every seam.
		lines := &lineReader{r: bufio.NewReaderSize(bytes.NewReader(data), 16), max: most}
		for i, want := range splitLines(data, most) {
			got, err := lines.next()
			if err != nil || got.long != want.long || !want.long && !bytes.Equal(got.data, want.data) {
				t.Fatalf("line %d of %.200q is %.200q (long %v), error %v, want %.200q (long %v)", i, data, got.data, got.long, err, want.data, want.long)
			}
			if want.long && (!bytes.HasPrefix(want.data, bytes.TrimSuffix(got.data, []byte("\r"))) || !bytes.HasSuffix(want.data, got.tail)) {
				t.Fatalf("the ends of long line %d are %q and %q", i, got.data, got.tail)
			}
		}
		if got, err := lines.next(); err != io.EOF || len(got.data) > 0 {
			t.Fatalf("after the last line of %.200q: %.200q, %v", data, got.data, err)
		}
	})
}

// bare is a pipe without a process, for what arrives on it.
func bare(r router) *pipe {
	log := slog.New(slog.DiscardHandler)
	return &pipe{
		log: log, out: newOutbox(), router: r, calls: map[string]*call{}, lines: newLineReader(nil, 1<<20),
		noise: newLineLog(log, "noise"), broken: make(chan struct{}),
	}
}

// Whatever a server writes, it neither breaks the pipe nor ends another call than the one it names.
func FuzzReceive(f *testing.F) {
	for _, text := range []string{
		`{"jsonrpc":"2.0","id":1,"result":{}}`, `{"jsonrpc":"2.0","id":2,"result":{}}`, `{"id":1,"result":`, `[]`, `{"result":{},"id":1}`,
		`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`,
		`{"jsonrpc":"2.0","id":5,"method":"ping"}`, `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":1}}`,
		`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":7}}`,
		`{"jsonrpc":"2.0","method":"x","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":1}}}`,
	} {
		f.Add([]byte(text), false)
		f.Add([]byte(text), true)
	}
	m := scan(f, toolCall(`"client"`, "x", "{}"))
	f.Fuzz(func(t *testing.T, data []byte, long bool) {
		o := newPool(&Server{})
		s := &sharedSession{inbox: newInbox(slog.New(slog.DiscardHandler)), pool: o, level: 3, uris: map[string]struct{}{"": {}}}
		o.sessions[s] = struct{}{}
		for _, r := range []router{o, statelessRouter{}} {
			p := bare(r)
			for range 2 {
				if _, err := p.begin(t.Context(), m, order{owner: s}); err != nil {
					t.Fatal(err)
				}
			}
			p.receive(line{data: data, tail: lastBytes(data), long: long})
			for key, k := range map[string]*call{"1": p.find("1"), "2": p.find("2")} {
				if k == nil && !bytes.Contains(data, []byte(key)) {
					t.Fatalf("%q ended call %s", data, key)
				}
			}
			p.breakDown()
		}
	})
}

func TestAWelcomeThatIsNoneIsRefused(t *testing.T) {
	for _, text := range []string{
		``, `{}`, `{"jsonrpc":"2.0","id":0,"error":{"code":1,"message":"no"}}`, `{"jsonrpc":"2.0","id":0,"result":7}`,
		`{"jsonrpc":"2.0","id":0,"result":{}}`, `{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":1}}`,
		`{"jsonrpc":"2.0","id":0,"result":{"ProtocolVersion":"2025-11-25"}}`,
	} {
		if w, err := readWelcome([]byte(text)); err == nil {
			t.Errorf("%s was taken for version %s", text, w.negotiated)
		}
	}
}

func BenchmarkCall(b *testing.B) {
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	s, err := New("peer", specFor(self, "strict"), Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close(context.Background())
	session, _, err := s.Open(b.Context(), message(b, initialize))
	if err != nil {
		b.Fatal(err)
	}
	for _, size := range []int{100, 100 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			c := message(b, toolCall("1", "echo", `{"x":"`+strings.Repeat("x", size)+`"}`))
			b.ReportAllocs()
			for b.Loop() {
				a, err := session.Call(b.Context(), c)
				if err != nil {
					b.Fatal(err)
				}
				a.Close()
			}
		})
	}
}
