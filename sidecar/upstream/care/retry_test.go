package care

import (
	"context"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

func TestWhatIsSentAgain(t *testing.T) {
	tests := []struct {
		method   string
		fail     *upstream.Error
		attempts uint32
		others   int // endpoints that are well
		want     int64
		answered bool
	}{
		{"call x", fault(upstream.Unreachable), 0, 0, 1, false},
		{"call x", fault(upstream.Unreachable), 0, 1, 1, true}, // it did not happen
		{"call x", fault(upstream.Lost), 0, 1, 1, false},
		{"call x", fault(upstream.Lost), 3, 1, 1, false},
		{"call x", fault(upstream.Unreachable), 3, 0, 1, false},
		{"call reads", fault(upstream.Lost), 3, 1, 1, true},
		{"call sets", fault(upstream.Lost), 3, 1, 1, true},
		{"call reads", fault(upstream.Lost), 3, 0, 4, false},
		{"call changed", fault(upstream.Lost), 3, 0, 1, false},
		{"tools/list", fault(upstream.Lost), 0, 1, 1, false},
		{"tools/list", fault(upstream.Lost), 2, 0, 3, false},
		{"tools/list", fault(upstream.Lost), 2, 1, 1, true},
		{"tools/list", fault(upstream.Unreachable), 2, 0, 3, false},
		{"tools/list", status(503), 2, 0, 3, false},
		{"tools/list", status(404), 2, 0, 1, false},
		{"tools/list", fault(upstream.TimedOut), 2, 0, 1, false},
		{"tools/list", fault(upstream.BadAnswer), 2, 0, 1, false},
		{"tools/list", fault(upstream.WrongEra), 2, 0, 1, false},
		{"tools/list", fault(upstream.Overloaded), 2, 0, 1, false},
		{"prompts/list", fault(upstream.Lost), 1, 0, 2, false},
		{"prompts/get", fault(upstream.Lost), 1, 0, 2, false},
		{"resources/list", fault(upstream.Lost), 1, 0, 2, false},
		{"resources/templates/list", fault(upstream.Lost), 1, 0, 2, false},
		{"resources/read", fault(upstream.Lost), 1, 0, 2, false},
		{"completion/complete", fault(upstream.Lost), 1, 0, 2, false},
		{"server/discover", fault(upstream.Lost), 1, 0, 2, false},
		{"tasks/cancel", fault(upstream.Lost), 1, 0, 1, false},
		{"vendor/list", fault(upstream.Lost), 1, 0, 1, false},
	}
	for _, tt := range tests {
		bad := newFake(tt.fail)
		fakes := []*fake{bad}
		for range tt.others {
			fakes = append(fakes, new(fake))
		}
		inBubble(t, specOf(unchecked, attempts(tt.attempts)), func(t *testing.T, s *Server) {
			if s.retries != nil {
				learnTools(&s.retries.hints)
			}
			for _, e := range s.endpoints[1:] {
				e.calls.Add(1) // the bad one has the fewest
				defer e.calls.Add(-1)
			}
			err := call(t.Context(), s, request(t, tt.method))
			if n := bad.calls.Load(); n != tt.want || (err == nil) != tt.answered {
				t.Errorf("%s after %s, %d attempts and %d other endpoints: sent %d times and %v; want %d times, answered %v",
					tt.method, tt.fail.Kind.Reason(), tt.attempts, tt.others, n, err, tt.want, tt.answered)
			}
			var sent, good int64
			for _, f := range fakes {
				sent += f.calls.Load()
			}
			if tt.answered {
				good = 1
			}
			if got, want := s.Snapshot().Retries, (RetrySnapshot{uint64(good), uint64(sent - 1 - good), 0}); got != want {
				t.Errorf("%s after %s, %d attempts and %d other endpoints: counted %+v, want %+v",
					tt.method, tt.fail.Kind.Reason(), tt.attempts, tt.others, got, want)
			}
		}, fakes...)
	}
}

// learnTools teaches two lists, of which the second takes a tool's promise back.
func learnTools(h *hints) {
	h.learn([]byte(`{"jsonrpc":"2.0","id":1,"result":{"tools":[` +
		`{"name":"x","annotations":{"readOnlyHint":false,"idempotentHint":"true"}},{"name":"reads","annotations":{"readOnlyHint":true}},` +
		`{"name":"sets","annotations":{"idempotentHint":true}},{"name":"changed","annotations":{"idempotentHint":true}},{"name":7}]}}`))
	h.learn([]byte(`{"jsonrpc":"2.0","id":2,"result":{"tools":[{"name":"changed"}]}}`))
}

func TestHintsAreLearntFromListsThatPassBy(t *testing.T) {
	const list = `{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"reads","annotations":{"readOnlyHint":true}}]}}`
	forms := map[string]func() *upstream.Answer{
		"body": func() *upstream.Answer { return answerOf(list) },
		"events": func() *upstream.Answer {
			return &upstream.Answer{Status: 200, Length: -1, Events: &script{events: []string{list}, end: io.EOF}}
		},
	}
	for form, answer := range forms {
		for _, legacy := range []bool{false, true} {
			f := new(fake)
			f.answers(func(context.Context, *upstream.Call) (*upstream.Answer, error) { return answer(), nil })
			inBubble(t, specOf(unchecked, attempts(1)), func(t *testing.T, s *Server) {
				if legacy {
					session, _, err := s.Open(t.Context(), request(t, mcp.MethodInitialize))
					if err != nil {
						t.Fatal(err)
					}
					if err := finish(session.Call(t.Context(), request(t, "tools/list"))); err != nil {
						t.Fatal(err)
					}
				} else if err := call(t.Context(), s, request(t, "tools/list")); err != nil {
					t.Fatal(err)
				}
				if !s.retries.hints.repeatable("reads") {
					t.Errorf("from a list in a %s, legacy %v, nothing was learnt", form, legacy)
				}
			}, f)
		}
	}
}

func TestHintsAreBounded(t *testing.T) {
	var h hints
	for i := range maxTools + 10 {
		h.setLocked(string(rune('a'+i%26))+time.Duration(i).String(), true)
	}
	if n := len(h.tools); n != maxTools {
		t.Errorf("%d tools are remembered, want %d", n, maxTools)
	}
	body := &listBody{ReadCloser: io.NopCloser(endless{}), hints: &h}
	if _, err := io.CopyN(io.Discard, body, maxList+1<<20); err != nil || len(body.read) != 0 {
		t.Errorf("of a list without end %d bytes are kept, %v; want none", len(body.read), err)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func TestRetriesAndThoseWithoutBudgetAreCounted(t *testing.T) {
	f := new(fake)
	inBubble(t, specOf(unchecked, attempts(1)), func(t *testing.T, s *Server) {
		session, _, err := s.Open(t.Context(), request(t, "initialize"))
		if err != nil {
			t.Fatal(err)
		}
		f.fail.Store(fault(upstream.Unreachable))
		_ = finish(session.Call(t.Context(), request(t, "tools/list")))
		for s.retries.budget.take(time.Now()) {
		}
		before := s.retries.budget.refused.Load()
		_ = call(t.Context(), s, request(t, "tools/list"))
		_ = finish(session.Call(t.Context(), request(t, "tools/list")))
		if got, want := s.Snapshot().Retries, (RetrySnapshot{Failed: 1, NoBudget: before + 2}); got != want {
			t.Errorf("counted %+v, want %+v", got, want)
		}
	}, f)
}

func TestACancelledCallIsNotSentAgain(t *testing.T) {
	f := new(fake)
	f.answers(func(ctx context.Context, _ *upstream.Call) (*upstream.Answer, error) {
		<-ctx.Done()
		return nil, fault(upstream.Lost)
	})
	inBubble(t, specOf(unchecked, attempts(5)), func(t *testing.T, s *Server) {
		wantKind(t, call(cancelledAfter(t, time.Second), s, request(t, "tools/list")), upstream.Lost, "")
		f.answer.Store(nil)
		f.fail.Store(fault(upstream.Lost))
		wantKind(t, call(cancelledAfter(t, 10*time.Millisecond), s, request(t, "tools/list")), upstream.Lost, "")
		if n := f.calls.Load(); n != 2 {
			t.Errorf("sent %d times for two calls that were cancelled, one in a pause; want 2", n)
		}
	}, f)
}

func TestASessionsCallIsSentAgainOnlyIfItDidNotHappen(t *testing.T) {
	for kind, want := range map[upstream.Kind]int64{upstream.Unreachable: 3, upstream.Lost: 1} {
		f := new(fake)
		inBubble(t, specOf(unchecked, attempts(2)), func(t *testing.T, s *Server) {
			session, _, err := s.Open(t.Context(), request(t, mcp.MethodInitialize))
			if err != nil {
				t.Fatal(err)
			}
			f.fail.Store(fault(kind))
			wantKind(t, finish(session.Call(t.Context(), request(t, "tools/list"))), kind, "")
			if n := f.calls.Load(); n != want {
				t.Errorf("%s: sent %d times, want %d", kind.Reason(), n, want)
			}
		}, f)
	}
}

func TestPausesBetweenAttemptsGrow(t *testing.T) {
	f := newFake(fault(upstream.Lost))
	inBubble(t, specOf(unchecked, attempts(4)), func(t *testing.T, s *Server) {
		begun := time.Now()
		_ = call(t.Context(), s, request(t, "tools/list"))
		took := time.Since(begun)
		if least, most := 375*time.Millisecond, 750*time.Millisecond; took < least || took > most {
			t.Errorf("four more attempts took %v, want between %v and %v", took, least, most)
		}
	}, f)
}

func TestRetriesHaveABudget(t *testing.T) {
	now := time.Unix(1000, 0)
	b := budget{percent: 20}
	take := func(now time.Time) (n int) {
		for b.take(now) {
			n++
		}
		return n
	}
	if n := take(now); n != budgetLeast {
		t.Errorf("without calls %d retries, want %d", n, budgetLeast)
	}
	for range 200 {
		b.count(now)
	}
	if n := take(now); n != 40-budgetLeast {
		t.Errorf("after 200 calls %d more, want %d", n, 40-budgetLeast)
	}
	if n := take(now.Add(9 * time.Second)); n != 0 {
		t.Errorf("nine seconds later %d more, want none", n)
	}
	if n := take(now.Add(10 * time.Second)); n != budgetLeast {
		t.Errorf("ten seconds later %d, want %d: the calls are too long ago", n, budgetLeast)
	}
}

func FuzzLearn(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"a","annotations":{"readOnlyHint":true}},[],{"name":"a"}]}}`))
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"\u0061","annotations":[]},{"annotations":{"readOnlyHint":true}}]}}`))
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"result":[]}`))
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"error":{"tools":[]}}`))
	f.Fuzz(func(t *testing.T, response []byte) {
		var h hints
		h.learn(response)
		if n := len(h.tools); n > len(response)/len(`{"name":""}`) {
			t.Errorf("%d tools out of %q", n, response)
		}
	})
}

func TestWhatDidNotHappenIsMovedOnce(t *testing.T) {
	dead := []*fake{newFake(fault(upstream.Unreachable)), newFake(fault(upstream.Unreachable)), newFake(fault(upstream.Unreachable))}
	inBubble(t, specOf(unchecked), func(t *testing.T, s *Server) {
		wantKind(t, call(t.Context(), s, request(t, "call x")), upstream.Unreachable, "")
		sent := []int64{dead[0].calls.Load(), dead[1].calls.Load(), dead[2].calls.Load()}
		if slices.Sort(sent); !slices.Equal(sent, []int64{0, 1, 1}) {
			t.Errorf("three dead endpoints were tried %v times, want two of them once", sent)
		}
	}, dead...)
}
