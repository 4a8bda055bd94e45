package tolegacy

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const crowd = 200

// person is a client whose every payload names it.
type person struct {
	*client
	ctx  context.Context
	name string
}

// do makes a call with the same id and progress token as everybody's, and holds that all it gets is its own.
func (p *person) do(more string) (reply, error) {
	a, err := p.server.Call(p.ctx, p.tool("1", "story", p.name, more))
	if err != nil {
		return reply{}, err
	}
	defer a.Close()
	r, err := readReply(a)
	for _, m := range append(r.before, r.last) {
		for _, word := range strings.FieldsFunc(m, func(c rune) bool { return !strings.ContainsRune("person-0123456789", c) }) {
			if strings.HasPrefix(word, "person-") && word != p.name {
				p.t.Errorf("%s got what belongs to %s: %s", p.name, word, m)
			}
		}
	}
	return r, err
}

// live goes through the story to its end, or leaves it where the person's turn says so.
func (p *person) live(leaveAfter int) {
	r, err := p.do("")
	for round := range 3 {
		if err != nil {
			p.t.Errorf("%s, round %d: %v", p.name, round, err)
			return
		}
		if len(r.before) != 2 || !strings.Contains(r.before[0], "log of "+p.name) ||
			!strings.Contains(r.before[1], "progress of "+p.name) || !strings.Contains(r.before[1], `"progressToken":1,`) {
			p.t.Errorf("%s, round %d: before the response %q, want a log line and progress", p.name, round, r.before)
		}
		if round == leaveAfter {
			return // and never comes back
		}
		q := questions(p.t, r)
		for key, one := range q.Result.InputRequests {
			if !strings.Contains(string(one.Params), "question of "+p.name) {
				p.t.Errorf("%s was asked %s", p.name, one.Params)
			}
			r, err = p.do(q.retry(fmt.Sprintf(`{%q:{"action":"accept","content":{"owner":%q}}}`, key, p.name)))
		}
	}
	if err != nil || !strings.Contains(r.last, strings.Repeat(";"+p.name+":accept:"+p.name, 3)) {
		p.t.Errorf("%s ended with %s, %v", p.name, r.last, err)
	}
}

// Many clients, few principals, one server, the same ids and tokens everywhere.
func TestTwoHundredClientsGetTheirOwn(t *testing.T) {
	r := newReal(t, nil)
	s := realBridge(t, r, bridge(func(b *outriggerv1.Bridge) { b.MaxHeldCalls = crowd }))
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	var all sync.WaitGroup
	for i := range crowd {
		principal := fmt.Sprintf("principal-%d", i%8)
		if i%8 == 0 {
			principal = ""
		}
		leaveAfter := 3
		if i%10 == 9 {
			leaveAfter = i / 10 % 3
		}
		c := newClient(t, s, principal, everything)
		c.meta = `"progressToken":1,"io.modelcontextprotocol/logLevel":"info",`
		all.Go(func() { (&person{c, ctx, fmt.Sprintf("person-%d", i)}).live(leaveAfter) })
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	most := 0
	for waiting := true; waiting; {
		select {
		case <-done:
			waiting = false
		case <-time.After(time.Millisecond):
			most = max(most, s.heldForTest())
		}
	}
	if most > crowd || most < crowd/10 {
		t.Errorf("%d calls were held at most, want no more than %d", most, crowd)
	}
	eventually(t, "only calls of those who left are held", func() bool { return s.heldForTest() == crowd/10 })
	if n := s.sessionsForTest(); n != 8 {
		t.Errorf("%d sessions, want one for each principal", n)
	}
	for i := range crowd {
		if n := r.read(r.runs, fmt.Sprintf("story person-%d", i)); n != 1 {
			t.Errorf("the story of person-%d ran %d times", i, n)
		}
	}
	s.held.mu.Lock()
	var left []*call
	for _, k := range s.held.byID {
		left = append(left, k)
	}
	s.held.mu.Unlock()
	for _, k := range left {
		k.mu.Lock()
		absence := k.absence
		k.mu.Unlock()
		k.expire(absence) // as its time does
	}
	nothingInUse(t, s)
	if s.held.bytes != 0 {
		t.Errorf("%d bytes are kept for nobody", s.held.bytes)
	}
}

// The same, over a server that has no more than one place for a held call.
func TestACrowdBeyondTheBoundIsRefusedAndForgotten(t *testing.T) {
	r := newReal(t, nil)
	s := realBridge(t, r, bridge(func(b *outriggerv1.Bridge) { b.MaxHeldCalls = 1 }))
	first := newClient(t, s, "ann", everything)
	q := questions(t, first.do(first.tool("1", "ask", "first", "")))
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			c := newClient(t, s, "ann", everything)
			_, err := s.Call(testContext(t), c.tool("1", "ask", fmt.Sprint(i), ""))
			if e, ok := err.(*upstream.Error); !ok || e.Kind != upstream.Overloaded {
				t.Errorf("a call beyond the bound: %v", err)
			}
		})
	}
	all.Wait()
	eventually(t, "all are cancelled at the server", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.cancelled) == 20
	})
	first.do(first.tool("2", "ask", "first", q.retry(accepted))).want(t, 200, "first:accept")
	nothingInUse(t, s)
}

// Clients that leave at any moment, before, during and after a question, leave nothing behind.
func TestLeavingAtAnyMomentReleasesAll(t *testing.T) {
	r := newReal(t, nil)
	s := realBridge(t, r, bridge(func(b *outriggerv1.Bridge) { b.HeldTimeout = durationpb.New(50 * time.Millisecond) }))
	newClient(t, s, "ann", everything).do(newClient(t, s, "ann", everything).tool("1", "echo", "x", ""))
	var all sync.WaitGroup
	for i := range crowd {
		all.Go(func() {
			c := newClient(t, s, "ann", everything)
			ctx, leave := context.WithTimeout(context.Background(), time.Duration(i)*time.Millisecond/4)
			defer leave()
			more := ""
			for {
				a, err := s.Call(ctx, c.tool("1", "ask3", fmt.Sprint(i), more))
				if err != nil {
					return
				}
				last, err := readReply(a)
				a.Close()
				if err != nil || !strings.Contains(last.last, "input_required") {
					return
				}
				q := questions(t, last)
				for key := range q.Result.InputRequests {
					more = q.retry(fmt.Sprintf(`{%q:{"action":"accept","content":{"owner":"x"}}}`, key))
				}
			}
		})
	}
	all.Wait()
	nothingInUse(t, s)
	if s.held.bytes != 0 {
		t.Errorf("%d bytes are kept for nobody", s.held.bytes)
	}
}
