package care

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream/streamable"
)

// inBubble runs a test with a clock of its own around endpoints.
func inBubble(t *testing.T, spec *outriggerv1.Upstream, f func(t *testing.T, s *Server), fakes ...*fake) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := around(spec, fakes...)
		defer closeServer(t, s)
		f(t, s)
	})
}

func TestOnlyFaultsOfTheEndpointOpenTheBreaker(t *testing.T) {
	tests := []struct {
		name  string
		fail  *upstream.Error
		opens bool
	}{
		{"unreachable", fault(upstream.Unreachable), true},
		{"lost", fault(upstream.Lost), true},
		{"timed out", fault(upstream.TimedOut), true},
		{"no MCP", fault(upstream.BadAnswer), true},
		{"503 without MCP", status(503), true},
		{"500 without MCP", status(500), true}, // where no check can say otherwise
		{"404 without MCP", status(404), false},
		{"a credential refused", fault(upstream.Unauthorized), false},
		{"the other wire", fault(upstream.WrongEra), false},
		{"a session gone", fault(upstream.SessionGone), false},
		{"a bound of ours", fault(upstream.Overloaded), false},
		{"no credential to present", fault(upstream.NoCredential), false},
	}
	for _, tt := range tests {
		f := newFake(tt.fail)
		inBubble(t, specOf(unchecked), func(t *testing.T, s *Server) {
			for range 5 {
				wantKind(t, call(t.Context(), s, request(t, "call x")), tt.fail.Kind, tt.fail.Detail)
			}
			if s.Healthy() == tt.opens {
				t.Errorf("%s: healthy is %v after five, want %v", tt.name, s.Healthy(), !tt.opens)
			}
			begun := time.Now()
			err := call(t.Context(), s, request(t, "call x"))
			if took := time.Since(begun); tt.opens && took != 0 {
				t.Errorf("%s: refused after %v, want at once", tt.name, took)
			}
			if tt.opens {
				wantKind(t, err, upstream.Unreachable, "left alone after 5 faults in a row; it is tried again in ")
			}
			if want := map[bool]int64{true: 5, false: 6}[tt.opens]; f.calls.Load() != want {
				t.Errorf("%s: %d calls reached it, want %d", tt.name, f.calls.Load(), want)
			}
		}, f)
	}
}

func TestClientsThatCancelSayNothingAboutTheEndpoint(t *testing.T) { // ten cancelled calls, then another client
	f := new(fake)
	f.answers(func(ctx context.Context, _ *upstream.Call) (*upstream.Answer, error) {
		<-ctx.Done()
		return nil, fault(upstream.Lost)
	})
	inBubble(t, specOf(unchecked), func(t *testing.T, s *Server) {
		for range 10 {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			wantKind(t, call(ctx, s, request(t, "call x")), upstream.Lost, "")
		}
		f.answer.Store(nil)
		if err := call(t.Context(), s, request(t, "call x")); err != nil || !s.Healthy() {
			t.Errorf("another client: %v, healthy %v; want an answer", err, s.Healthy())
		}
	}, f)
}

func TestAnAnswerGivenUpSaysNothing(t *testing.T) {
	f := new(fake)
	f.answers(func(context.Context, *upstream.Call) (*upstream.Answer, error) {
		return &upstream.Answer{Status: 200, Length: -1, Body: held{}}, nil
	})
	inBubble(t, specOf(unchecked), func(t *testing.T, s *Server) {
		for range 20 {
			a, err := s.Call(t.Context(), request(t, "call x"))
			if err != nil {
				t.Fatal(err)
			}
			a.Close()
			a.Close() // as often as one likes
		}
		if n, _ := s.gate.load(); n != 0 || !s.Healthy() {
			t.Errorf("%d in flight, healthy %v; want 0, true", n, s.Healthy())
		}
	}, f)
}

// The bridge and the federation close a stream once they have its response, and do not wait for its end.
func TestAStreamClosedAfterItsResponseWasASuccess(t *testing.T) {
	f := newFake(nil)
	inBubble(t, specOf(unchecked), func(t *testing.T, s *Server) {
		for range 20 {
			f.fail.Store(fault(upstream.Lost))
			_ = call(t.Context(), s, request(t, "call x"))
			f.fail.Store(nil)
			f.answers(func(context.Context, *upstream.Call) (*upstream.Answer, error) {
				return &upstream.Answer{Status: 200, Length: -1, Events: &script{end: io.EOF, events: []string{`{"jsonrpc":"2.0","id":1,"result":{}}`}}}, nil
			})
			a, err := s.Call(t.Context(), request(t, "call x"))
			if err != nil {
				t.Fatalf("faults with a success between them opened the breaker: %v", err)
			}
			if _, err := a.Events.Next(); err != nil {
				t.Fatal(err)
			}
			a.Close()
		}
	}, f)
}

// A client chooses its ids, and may choose one that the server cannot hold.
func TestAnAnswerUnderAnotherIdIsNoFaultOfTheEndpoint(t *testing.T) {
	f := newFake(&upstream.Error{Kind: upstream.BadAnswer, Upstream: "weather", Detail: "answered another request", Cause: upstream.ErrOtherID})
	inBubble(t, specOf(unchecked), func(t *testing.T, s *Server) {
		for range 20 {
			_ = call(t.Context(), s, request(t, "call x"))
		}
		if !s.Healthy() {
			t.Error("twenty answers to other ids opened the breaker")
		}
	}, f)
}

func TestAnswersThatBreakOffAreFaults(t *testing.T) {
	f := new(fake)
	f.answers(func(context.Context, *upstream.Call) (*upstream.Answer, error) {
		return &upstream.Answer{Status: 200, Length: -1, Events: &script{end: fault(upstream.Lost), events: []string{"{}"}}}, nil
	})
	inBubble(t, specOf(unchecked), func(t *testing.T, s *Server) {
		for range 5 {
			wantKind(t, call(t.Context(), s, request(t, "call x")), upstream.Lost, "")
		}
		if s.Healthy() {
			t.Error("five answers broke off, and it is healthy")
		}
		time.Sleep(time.Second)
		wantKind(t, call(t.Context(), s, request(t, "call x")), upstream.Lost, "") // the trial, which began well
		wantKind(t, call(t.Context(), s, request(t, "call x")), upstream.Unreachable, "left alone")
		time.Sleep(2 * time.Second)
		f.answer.Store(nil)
		if err := call(t.Context(), s, request(t, "call x")); err != nil || !s.Healthy() {
			t.Errorf("once it is well: %v", err)
		}
	}, f)
}

// script is a stream of events that ends with an error.
type script struct {
	events []string
	end    error
}

func (s *script) Next() (mcp.Event, error) {
	if len(s.events) == 0 {
		return mcp.Event{}, s.end
	}
	e := mcp.Event{Data: []byte(s.events[0])}
	s.events = s.events[1:]
	return e, nil
}

func (s *script) Ready() bool  { return len(s.events) > 0 }
func (s *script) Close() error { return nil }

func TestOneCallTriesAndCanNotBlockTheOthers(t *testing.T) {
	f := newFake(fault(upstream.TimedOut))
	inBubble(t, specOf(unchecked), func(t *testing.T, s *Server) {
		for range 5 {
			_ = call(t.Context(), s, request(t, "call x"))
		}
		time.Sleep(time.Second)
		f.fail.Store(nil)
		f.answers(func(ctx context.Context, _ *upstream.Call) (*upstream.Answer, error) { // accepts and never answers
			<-ctx.Done()
			return nil, fault(upstream.Lost)
		})
		f.calls.Store(0)
		hanging, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		for range 3 {
			go func() { _ = call(hanging, s, request(t, "call x")) }()
			synctest.Wait()
		}
		if n := f.calls.Load(); n != 1 {
			t.Errorf("%d calls try, want 1", n)
		}
		wantKind(t, call(t.Context(), s, request(t, "call x")), upstream.Unreachable, "another call tries")
		f.answer.Store(nil)
		time.Sleep(10*time.Second - 1)
		wantKind(t, call(t.Context(), s, request(t, "call x")), upstream.Unreachable, "another call tries")
		time.Sleep(time.Nanosecond)
		if err := call(t.Context(), s, request(t, "call x")); err != nil || !s.Healthy() {
			t.Errorf("after the time for a trial: %v, healthy %v; want an answer", err, s.Healthy())
		}
	}, f)
}

func TestATrialThatIsCancelledLetsAnotherTryAtOnce(t *testing.T) {
	f := newFake(fault(upstream.TimedOut))
	inBubble(t, specOf(unchecked), func(t *testing.T, s *Server) {
		for range 5 {
			_ = call(t.Context(), s, request(t, "call x"))
		}
		time.Sleep(time.Second)
		f.fail.Store(nil)
		f.answers(func(ctx context.Context, _ *upstream.Call) (*upstream.Answer, error) {
			<-ctx.Done()
			return nil, fault(upstream.Lost)
		})
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		wantKind(t, call(ctx, s, request(t, "call x")), upstream.Lost, "")
		f.answer.Store(nil)
		if err := call(t.Context(), s, request(t, "call x")); err != nil {
			t.Errorf("the next: %v, want an answer", err)
		}
	}, f)
}

func TestAnIdleEndpointIsCheckedAndOneInUseIsNot(t *testing.T) {
	f := new(fake)
	inBubble(t, specOf(), func(t *testing.T, s *Server) {
		time.Sleep(time.Minute)
		if n := f.checks.Load(); n != 0 {
			t.Errorf("%d checks before it was used, want none", n)
		}
		for range 60 {
			if err := call(t.Context(), s, request(t, "call x")); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if n := f.checks.Load(); n != 0 {
			t.Errorf("%d checks while calls succeeded, want none", n)
		}
		time.Sleep(time.Minute)
		if n := f.checks.Load(); n < 4 || n > 8 {
			t.Errorf("%d checks in an idle minute, want one in 7.5 to 10 seconds, after the first", n)
		}
	}, f)
}

func TestChecksFindThatAnIdleEndpointDiedAndCameBack(t *testing.T) {
	for _, kind := range []upstream.Kind{upstream.Unreachable, upstream.TimedOut, upstream.BadAnswer} {
		f := new(fake)
		inBubble(t, specOf(), func(t *testing.T, s *Server) {
			if err := s.Check(t.Context()); err != nil {
				t.Fatal(err)
			}
			f.fail.Store(fault(kind))
			time.Sleep(70 * time.Second) // five checks, each of which may hang for ten seconds
			if s.Healthy() {
				t.Errorf("%s: healthy after %d checks", kind.Reason(), f.checks.Load())
			}
			f.fail.Store(nil)
			time.Sleep(20 * time.Second) // the one under way, and the interval
			if !s.Healthy() {
				t.Errorf("%s: not healthy again after %d checks", kind.Reason(), f.checks.Load())
			}
		}, f)
	}
}

func TestNoChecksWhereTheyAreTurnedOff(t *testing.T) {
	f := newFake(fault(upstream.Unreachable))
	inBubble(t, specOf(unchecked), func(t *testing.T, s *Server) {
		for range 10 {
			_ = call(t.Context(), s, request(t, "call x"))
		}
		time.Sleep(time.Minute)
		if n := f.checks.Load(); n != 0 {
			t.Errorf("%d checks, want none", n)
		}
	}, f)
}

func TestCallsToADeadServerAskForFewChecksAndRecoverAtOnce(t *testing.T) {
	f := newFake(fault(upstream.Unreachable))
	inBubble(t, specOf(), func(t *testing.T, s *Server) {
		for range 5 {
			_ = call(t.Context(), s, request(t, "call x"))
		}
		f.checks.Store(0)
		for range 100 { // ten at a time, for a second
			all(10, func(int) {
				begun := time.Now()
				wantKind(t, call(t.Context(), s, request(t, "call x")), upstream.Unreachable, "")
				if took := time.Since(begun); took > soon {
					t.Errorf("refused after %v, want at most %v", took, soon)
				}
			})
			time.Sleep(10 * time.Millisecond)
		}
		if n := f.checks.Load(); n > 130 {
			t.Errorf("%d checks, want at most one in 50ms", n)
		}
		f.fail.Store(nil)
		if err := call(t.Context(), s, request(t, "call x")); err != nil {
			t.Errorf("the first call after it came back: %v, want an answer", err)
		}
	}, f)
}

func TestAnEndpointThatAnswersBadlyIsLeftAlone(t *testing.T) {
	f := newFake(status(503))
	inBubble(t, specOf(), func(t *testing.T, s *Server) {
		for range 5 {
			_ = call(t.Context(), s, request(t, "call x"))
		}
		f.checks.Store(0)
		for range 70 { // for 0.7 seconds, which is less than the shortest pause
			wantKind(t, call(t.Context(), s, request(t, "call x")), upstream.Unreachable, "left alone")
			time.Sleep(10 * time.Millisecond)
		}
		if c, n := f.calls.Load(), f.checks.Load(); c != 5 || n != 0 {
			t.Errorf("%d calls and %d checks, want 5 and none", c, n)
		}
	}, f)
}

// Whoever calls a tool that breaks its server's answer, as often as he likes, does not close the server to the others: that
// takes a handshake that fails too.
func TestAToolThatFailsDoesNotCloseItsServer(t *testing.T) {
	for _, broken := range []*upstream.Error{status(500), fault(upstream.BadAnswer)} {
		f := new(fake)
		f.answers(func(_ context.Context, c *upstream.Call) (*upstream.Answer, error) {
			if string(c.Message.Name) == "broken" {
				return nil, broken
			}
			return answerOf(`{"jsonrpc":"2.0","id":1,"result":{}}`), nil
		})
		inBubble(t, specOf(), func(t *testing.T, s *Server) {
			for range 3 {
				for range 100 {
					wantKind(t, call(t.Context(), s, request(t, "call broken")), upstream.BadAnswer, broken.Detail)
				}
				if err := call(t.Context(), s, request(t, "call good")); err != nil {
					t.Fatalf("%v: another caller's call: %v", broken.Status, err)
				}
				time.Sleep(time.Minute)
			}
			f.fail.Store(status(500)) // whatever it is asked
			before := f.checks.Load()
			for range 5 {
				_ = call(t.Context(), s, request(t, "call broken"))
			}
			time.Sleep(2 * time.Second)
			if n := f.checks.Load() - before; n == 0 || s.Healthy() {
				t.Errorf("%v: %d checks within two seconds, healthy %v; want some that failed, and left alone", broken.Status, n, s.Healthy())
			}
			f.fail.Store(nil)
			time.Sleep(10 * time.Second)
			if err := call(t.Context(), s, request(t, "call good")); err != nil {
				t.Errorf("%v: once it is well again: %v", broken.Status, err)
			}
		}, f)
	}
}

// A tool that takes too long, however often it is called, does not close its server to the others either: before one of them
// is refused a check is made, and its answer is waited for. While the server hangs, checks included, the refusal is there
// after that moment, and soon at once.
func TestAToolThatHangsDoesNotCloseItsServer(t *testing.T) {
	f := new(fake)
	f.answers(func(_ context.Context, c *upstream.Call) (*upstream.Answer, error) {
		if string(c.Message.Name) == "hanging" {
			return nil, fault(upstream.TimedOut)
		}
		return answerOf(`{"jsonrpc":"2.0","id":1,"result":{}}`), nil
	})
	inBubble(t, specOf(), func(t *testing.T, s *Server) {
		_ = call(t.Context(), s, request(t, "call good"))
		for range 20 {
			for range 5 {
				wantKind(t, call(t.Context(), s, request(t, "call hanging")), upstream.TimedOut, "")
			}
			if s.Healthy() {
				t.Error("healthy after five in a row took too long, want a check to be asked for")
			}
			begun, before := time.Now(), f.checks.Load()
			err := call(t.Context(), s, request(t, "call good"))
			if took, n := time.Since(begun), f.checks.Load()-before; err != nil || took > checkPause || n != 1 {
				t.Fatalf("another caller's call: %v after %v and %d checks, want an answer within %v and one check", err, took, n, checkPause)
			}
		}
		f.fail.Store(fault(upstream.TimedOut))
		for range 5 {
			_ = call(t.Context(), s, request(t, "call good"))
		}
		for _, most := range []time.Duration{soon, soon, 0, 0} {
			begun := time.Now()
			wantKind(t, call(t.Context(), s, request(t, "call good")), upstream.Unreachable, "left alone")
			if took := time.Since(begun); took > most {
				t.Errorf("while it hangs: refused after %v, want at most %v", took, most)
			}
		}
	}, f)
}

// Of several endpoints one that fails every call is left alone, though its handshakes are good; a tool that fails at all of
// them leaves one in any case.
func TestAnEndpointThatFailsEveryCallIsLeftAloneWhileAnotherStandsIn(t *testing.T) {
	fails := func(only string) func(context.Context, *upstream.Call) (*upstream.Answer, error) {
		return func(_ context.Context, c *upstream.Call) (*upstream.Answer, error) {
			if only == "" || string(c.Message.Name) == only {
				return nil, status(500)
			}
			return answerOf(`{"jsonrpc":"2.0","id":1,"result":{}}`), nil
		}
	}
	broken, good := new(fake), new(fake)
	broken.answers(fails(""))
	inBubble(t, specOf(), func(t *testing.T, s *Server) {
		failed := 0
		for range 100 {
			if call(t.Context(), s, request(t, "call x")) != nil {
				failed++
			}
		}
		if failed != 5 {
			t.Errorf("%d of 100 calls at once failed, want 5", failed)
		}
	}, broken, good)

	both := []*fake{new(fake), new(fake)}
	for _, f := range both {
		f.answers(fails("broken"))
	}
	inBubble(t, specOf(), func(t *testing.T, s *Server) {
		for range 200 {
			_ = call(t.Context(), s, request(t, "call broken"))
		}
		if err := call(t.Context(), s, request(t, "call good")); err != nil {
			t.Errorf("another caller's call: %v", err)
		}
	}, both...)
}

// An answer of MCP is the server's word, whatever its status.
func TestAnErrorOfTheProtocolIsNoFaultWithAnyStatus(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"broken"}}`)
	}))
	defer srv.Close()
	spec := specOf(unchecked)
	spec.Era = outriggerv1.Era_ERA_STATELESS
	spec.GetHttp().Url = srv.URL
	e, err := streamable.New("weather", spec, streamable.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := New([]upstream.Server{e}, spec, Options{})
	defer closeReal(t, s)
	for range 10 {
		if err := call(t.Context(), s, request(t, "call x")); err != nil || !s.Healthy() {
			t.Fatalf("got %v, healthy %v; want the server's answer, and healthy", err, s.Healthy())
		}
	}
}

func TestCloseEndsEverything(t *testing.T) {
	f := new(fake)
	inBubble(t, specOf(places(1, 10)), func(t *testing.T, s *Server) {
		hold := make(chan struct{})
		f.answers(func(context.Context, *upstream.Call) (*upstream.Answer, error) {
			return &upstream.Answer{Status: 200, Length: -1, Body: held{hold}}, nil
		})
		a, err := s.Call(t.Context(), request(t, "call x"))
		if err != nil {
			t.Fatal(err)
		}
		waiting := make(chan error)
		go func() { waiting <- call(t.Context(), s, request(t, "call x")) }()
		synctest.Wait()
		if err := s.Close(t.Context()); err != nil || f.closes.Load() != 1 {
			t.Errorf("Close: %v, and the endpoint was closed %d times; want once", err, f.closes.Load())
		}
		wantKind(t, <-waiting, upstream.Lost, "removed")
		close(hold)
		_ = finish(a, nil)
	}, f)
}

func TestAShortIntervalIsKept(t *testing.T) {
	f := new(fake)
	inBubble(t, specOf(func(u *outriggerv1.Upstream) { u.Health.Interval = durationpb.New(100 * time.Millisecond) }),
		func(t *testing.T, s *Server) {
			_ = s.Check(t.Context())
			time.Sleep(10 * time.Second)
			if n := f.checks.Load(); n < 95 || n > 140 {
				t.Errorf("%d checks in ten seconds, want one in 75 to 100ms", n)
			}
		}, f)
}

func TestChecksThatSayNothingAreNotMadeWithoutAPause(t *testing.T) {
	f := newFake(fault(upstream.Unreachable))
	inBubble(t, specOf(), func(t *testing.T, s *Server) {
		for range 5 {
			_ = call(t.Context(), s, request(t, "call x"))
		}
		f.fail.Store(fault(upstream.Overloaded)) // a bound of the sidecar's own
		f.checks.Store(0)
		time.Sleep(10 * time.Second)
		if n := f.checks.Load(); n == 0 || n > 200 {
			t.Errorf("%d checks in ten seconds, want some, and at most one in %v", n, checkPause)
		}
	}, f)
}

func TestACallThatWaitsForACheckLeavesWithItsClient(t *testing.T) {
	f := newFake(fault(upstream.Unreachable))
	inBubble(t, specOf(), func(t *testing.T, s *Server) {
		for range 5 {
			_ = call(t.Context(), s, request(t, "call x"))
		}
		_ = s.endpoints[0].checkNow(t.Context()) // so the next is a while off
		begun := time.Now()
		err := call(cancelledAfter(t, 10*time.Millisecond), s, request(t, "call x"))
		wantKind(t, err, upstream.Lost, "cancelled before an endpoint was well")
		if took := time.Since(begun); took != 10*time.Millisecond {
			t.Errorf("it left after %v, want 10ms", took)
		}
	}, f)
}

func TestACallWaitsForAnotherCallsTrial(t *testing.T) {
	f := newFake(fault(upstream.Unreachable))
	inBubble(t, specOf(unchecked), func(t *testing.T, s *Server) {
		for range 5 {
			_ = call(t.Context(), s, request(t, "call x"))
		}
		time.Sleep(time.Second)
		f.fail.Store(nil)
		f.answers(func(context.Context, *upstream.Call) (*upstream.Answer, error) {
			time.Sleep(30 * time.Millisecond)
			return answerOf(`{}`), nil
		})
		all(8, func(int) {
			if err := call(t.Context(), s, request(t, "call x")); err != nil {
				t.Errorf("%v, want an answer", err)
			}
		})
	}, f)
}

func TestCallsThatWereUnderWayWhenItOpenedDoNotOpenItAgain(t *testing.T) {
	f := newFake(status(503))
	inBubble(t, specOf(unchecked), func(t *testing.T, s *Server) {
		f.fail.Store(nil)
		f.answers(func(context.Context, *upstream.Call) (*upstream.Answer, error) {
			time.Sleep(2 * time.Second)
			return nil, fault(upstream.Lost)
		})
		late := make(chan struct{})
		go func() { defer close(late); all(20, func(int) { _ = call(t.Context(), s, request(t, "call x")) }) }()
		synctest.Wait()
		f.fail.Store(status(503))
		for range 5 {
			_ = call(t.Context(), s, request(t, "call x"))
		}
		time.Sleep(time.Second)
		f.fail.Store(nil)
		f.answer.Store(nil)
		if err := call(t.Context(), s, request(t, "call x")); err != nil {
			t.Fatal(err)
		}
		<-late
		if !s.Healthy() {
			t.Error("twenty calls of before opened the breaker again")
		}
	}, f)
}

func TestAFaultOfASessionsStreamCountsOnlyIfItIsOfTheConnection(t *testing.T) {
	for kind, opens := range map[upstream.Kind]bool{upstream.Unreachable: true, upstream.BadAnswer: false} {
		f := new(fake)
		inBubble(t, specOf(unchecked), func(t *testing.T, s *Server) {
			session, _, err := s.Open(t.Context(), request(t, mcp.MethodInitialize))
			if err != nil {
				t.Fatal(err)
			}
			f.fail.Store(fault(kind))
			for range 7 {
				if _, err := session.Listen(t.Context()); err == nil {
					t.Fatal("a stream of an endpoint that has none")
				}
			}
			if n := f.listens.Load(); s.Healthy() == opens || opens != (n == 5) {
				t.Errorf("%s: healthy %v after %d listens, want opened: %v", kind.Reason(), s.Healthy(), n, opens)
			}
		}, f)
	}
}
