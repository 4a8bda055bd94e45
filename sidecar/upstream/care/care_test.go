package care

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

func TestPlacesAreHeldUntilTheAnswerEnds(t *testing.T) {
	f := new(fake)
	inBubble(t, specOf(unchecked, places(1, 1)), func(t *testing.T, s *Server) {
		ends := map[string]func(*upstream.Answer) error{
			"read":   func(a *upstream.Answer) error { return finish(a, nil) },
			"closed": (*upstream.Answer).Close,
		}
		for name, end := range ends {
			a, err := s.Call(t.Context(), request(t, "call x"))
			if err != nil {
				t.Fatal(err)
			}
			begun := time.Now()
			wantKind(t, call(t.Context(), s, request(t, "call x")), upstream.Overloaded, "within 5s: try again later")
			if took := time.Since(begun); took != 5*time.Second {
				t.Errorf("refused after %v, want 5s", took)
			}
			if err := end(a); err != nil {
				t.Error(err)
			}
			if err := call(t.Context(), s, request(t, "call x")); err != nil {
				t.Errorf("after it was %s: %v, want an answer", name, err)
			}
		}
	}, f)
}

func TestFiveHundredAtOnceAtAServerThatDoesOneAtATime(t *testing.T) {
	f := new(fake)
	var mu sync.Mutex
	inFlight, most := 0, 0
	f.answers(func(context.Context, *upstream.Call) (*upstream.Answer, error) {
		mu.Lock()
		inFlight++
		most = max(most, inFlight)
		mu.Unlock()
		time.Sleep(10 * time.Millisecond)
		mu.Lock()
		inFlight--
		mu.Unlock()
		return answerOf(`{}`), nil
	})
	inBubble(t, specOf(unchecked, places(1, 100)), func(t *testing.T, s *Server) {
		served, refused := 0, 0
		all(500, func(int) {
			err := call(t.Context(), s, request(t, "call x"))
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				served++
				return
			}
			refused++
			wantKind(t, err, upstream.Overloaded, "1 calls are in flight and 100 wait, as many as configured: try again later")
		})
		if served != 101 || refused != 399 || most != 1 {
			t.Errorf("%d served and %d refused, %d at once; want 101, 399 and 1", served, refused, most)
		}
	}, f)
}

func TestWhatACallMayWaitForTakesNoPlace(t *testing.T) {
	f := new(fake)
	inBubble(t, specOf(unchecked, places(1, 1)), func(t *testing.T, s *Server) {
		session, a, err := s.Open(t.Context(), request(t, mcp.MethodInitialize))
		if err := finish(a, err); err != nil {
			t.Fatal(err)
		}
		first, err := session.Call(t.Context(), request(t, "call x")) // a legacy session's calls count
		if err != nil {
			t.Fatal(err)
		}
		for _, raw := range []string{
			`{"jsonrpc":"2.0","id":9,"result":{"action":"accept"}}`,
			`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`,
		} {
			if _, err := session.Call(t.Context(), message(t, raw)); err != nil {
				t.Errorf("%s: %v, want no wait", raw, err)
			}
		}
		if a, err := s.Call(t.Context(), request(t, mcp.MethodListen)); err != nil {
			t.Errorf("a listen: %v, want no wait", err)
		} else if err := finish(a, nil); err != nil {
			t.Error(err)
		}
		if _, err := session.Listen(t.Context()); !errors.Is(err, upstream.ErrNoStream) {
			t.Errorf("a session's stream: %v, want the endpoint's own answer", err)
		}
		wantKind(t, finish(session.Call(t.Context(), request(t, "call x"))), upstream.Overloaded, "")
		wantKind(t, call(t.Context(), s, request(t, "call x")), upstream.Overloaded, "")
		if err := finish(first, nil); err != nil {
			t.Error(err)
		}
		if err := session.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}, f)
}

func TestAClientThatLeavesWhileItWaitsIsGoneAtOnce(t *testing.T) {
	f := new(fake)
	inBubble(t, specOf(unchecked, places(1, 1)), func(t *testing.T, s *Server) {
		a, err := s.Call(t.Context(), request(t, "call x"))
		if err != nil {
			t.Fatal(err)
		}
		for want, leaving := range map[upstream.Kind]func(*testing.T, time.Duration) context.Context{
			upstream.Lost: cancelledAfter, upstream.TimedOut: deadlineAfter,
		} {
			begun, ctx := time.Now(), leaving(t, time.Second)
			wantKind(t, call(ctx, s, request(t, "call x")), want, "while it waited for its turn")
			if took := time.Since(begun); took != time.Second || f.calls.Load() != 1 {
				t.Errorf("left after %v with %d calls at the endpoint, want 1s and 1", took, f.calls.Load())
			}
			if _, waiting := s.gate.load(); waiting != 0 {
				t.Errorf("%d wait, want none", waiting)
			}
		}
		_ = finish(a, nil)
	}, f)
}

func cancelledAfter(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(d, cancel)
	return ctx
}

func deadlineAfter(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestCallsGoToTheEndpointWithTheFewest(t *testing.T) {
	fakes := []*fake{new(fake), new(fake), new(fake)}
	inBubble(t, specOf(unchecked), func(t *testing.T, s *Server) {
		var open []*upstream.Answer
		for range 30 {
			a, err := s.Call(t.Context(), request(t, "call x"))
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, a)
		}
		for i, f := range fakes {
			if n := f.calls.Load(); n != 10 {
				t.Errorf("endpoint %d has %d calls of 30 that did not end, want 10", i, n)
			}
		}
		for _, a := range open {
			_ = finish(a, nil)
		}
		for range 300 { // one after the other: all are equal
			if err := call(t.Context(), s, request(t, "call x")); err != nil {
				t.Fatal(err)
			}
		}
		for i, f := range fakes {
			if n := f.calls.Load() - 10; n < 50 {
				t.Errorf("endpoint %d had %d of 300 calls among equals, want about 100", i, n)
			}
		}
	}, fakes...)
}

func TestAnEndpointThatDiesIsEjectedAndReturns(t *testing.T) {
	fakes := []*fake{new(fake), new(fake), new(fake)}
	inBubble(t, specOf(), func(t *testing.T, s *Server) {
		dead := fakes[1]
		dead.fail.Store(fault(upstream.Unreachable))
		for range 100 { // what was not reached is sent to another
			if err := call(t.Context(), s, request(t, "call x")); err != nil {
				t.Fatal(err)
			}
		}
		if n := dead.calls.Load(); n != 5 {
			t.Errorf("the dead one was tried %d times, want 5", n)
		}
		if got := up(s); !slices.Equal(got, []bool{true, false, true}) {
			t.Errorf("endpoints are up: %v, want all but the second", got)
		}
		time.Sleep(10 * time.Second)
		if n := dead.calls.Load(); n != 5 || dead.checks.Load() == 0 {
			t.Errorf("%d calls and %d checks at the dead one, want checks only", n, dead.checks.Load())
		}
		dead.fail.Store(nil)
		time.Sleep(10 * time.Second)
		for range 100 {
			if err := call(t.Context(), s, request(t, "call x")); err != nil {
				t.Fatal(err)
			}
		}
		if n := dead.calls.Load(); n < 10 {
			t.Errorf("it has %d calls since it came back, want its share", n-5)
		}
	}, fakes...)
}

func up(s *Server) (up []bool) {
	for _, e := range s.Snapshot().Endpoints {
		up = append(up, e.Up)
	}
	return up
}

func TestWithoutChecksACallBringsAnEndpointBack(t *testing.T) {
	fakes := []*fake{new(fake), newFake(fault(upstream.Unreachable))}
	inBubble(t, specOf(unchecked), func(t *testing.T, s *Server) {
		for range 50 {
			if err := call(t.Context(), s, request(t, "call x")); err != nil {
				t.Fatal(err)
			}
		}
		fakes[1].fail.Store(nil)
		time.Sleep(time.Second)
		if err := call(t.Context(), s, request(t, "call x")); err != nil || fakes[1].calls.Load() != 6 {
			t.Errorf("%v, and %d calls at the second; want its sixth", err, fakes[1].calls.Load())
		}
	}, fakes...)
}

func TestWhenAllAreEjectedTheFirstToBeTriedAgainIsTaken(t *testing.T) {
	fakes := []*fake{newFake(status(503)), newFake(status(503))}
	inBubble(t, specOf(unchecked), func(t *testing.T, s *Server) {
		for s.Healthy() {
			_ = call(t.Context(), s, request(t, "call x"))
			time.Sleep(10 * time.Millisecond)
		}
		wantKind(t, call(t.Context(), s, request(t, "call x")), upstream.Unreachable, "tried again in ")
		first := s.soonest(s.endpoints)
		for _, f := range fakes {
			f.fail.Store(nil)
		}
		time.Sleep(time.Until(first.retryAt()))
		if err := call(t.Context(), s, request(t, "call x")); err != nil || !first.up() {
			t.Errorf("%v, and the one that may be tried is up: %v; want an answer from it", err, first.up())
		}
	}, fakes...)
}

func TestASessionStaysWithItsEndpoint(t *testing.T) {
	fakes := []*fake{new(fake), new(fake), new(fake)}
	inBubble(t, specOf(unchecked), func(t *testing.T, s *Server) {
		for range 20 {
			session, a, err := s.Open(t.Context(), request(t, mcp.MethodInitialize))
			if err := finish(a, err); err != nil {
				t.Fatal(err)
			}
			before := [3]int64{}
			for i, f := range fakes {
				before[i] = f.calls.Load()
			}
			for range 10 {
				if err := finish(session.Call(t.Context(), request(t, "call x"))); err != nil {
					t.Fatal(err)
				}
			}
			for i, f := range fakes {
				if n := f.calls.Load() - before[i]; n != 0 && n != 10 {
					t.Fatalf("endpoint %d had %d of a session's 10 calls, want all or none", i, n)
				}
			}
		}
		for i, f := range fakes {
			if f.opens.Load() == 0 {
				t.Errorf("endpoint %d opened no session of 20", i)
			}
		}
	}, fakes...)
}

func TestErasAreFoundByEndpoint(t *testing.T) {
	legacy, stateless, dead := new(fake), new(fake), newFake(fault(upstream.Unreachable))
	legacy.eras.Store(uint32(mcp.EraSet(mcp.Legacy)))
	inBubble(t, specOf(unchecked), func(t *testing.T, s *Server) {
		if _, err := s.Eras(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		got, err := s.Eras(t.Context())
		if want := mcp.EraSet(mcp.Legacy, mcp.Stateless); err != nil || got != want {
			t.Errorf("eras %v, %v; want %v", got, err, want)
		}
		for range 20 {
			if err := call(t.Context(), s, request(t, "call x")); err != nil {
				t.Fatal(err)
			}
			if _, _, err := s.Open(t.Context(), request(t, mcp.MethodInitialize)); err != nil {
				t.Fatal(err)
			}
		}
		if legacy.calls.Load() != 0 || stateless.opens.Load() != 0 || dead.calls.Load() != 0 {
			t.Errorf("%d calls at the legacy endpoint, %d sessions at the stateless one, %d calls at the dead one; want none",
				legacy.calls.Load(), stateless.opens.Load(), dead.calls.Load())
		}
	}, legacy, stateless, dead)
}

func TestErasOfDeadEndpointsAreAnError(t *testing.T) {
	for n := 1; n <= 2; n++ {
		fakes := []*fake{newFake(fault(upstream.Unreachable)), newFake(fault(upstream.Unreachable))}[:n]
		inBubble(t, specOf(unchecked), func(t *testing.T, s *Server) {
			for range 20 {
				_, err := s.Eras(t.Context())
				wantKind(t, err, upstream.Unreachable, "")
			}
			for _, f := range fakes {
				if got := f.questions.Load(); got != 5 {
					t.Errorf("of %d endpoints one was asked %d times, want 5", n, got)
				}
			}
		}, fakes...)
	}
}

func TestReadyWhileOneEndpointIs(t *testing.T) {
	fakes := []*fake{newFake(fault(upstream.TimedOut)), new(fake), newFake(fault(upstream.Unreachable))}
	inBubble(t, specOf(unchecked), func(t *testing.T, s *Server) {
		begun := time.Now()
		if err := s.Check(t.Context()); err != nil || time.Since(begun) != 0 {
			t.Errorf("%v after %v, want ready at once", err, time.Since(begun))
		}
		fakes[1].fail.Store(fault(upstream.BadAnswer))
		if err := s.Check(t.Context()); err == nil {
			t.Error("ready, with no endpoint that is")
		}
	}, fakes...)
}

func TestASnapshotNamesEndpointsWithoutTheirSecrets(t *testing.T) {
	spec := specOf(unchecked, func(u *outriggerv1.Upstream) { u.GetHttp().MoreUrls = []string{"https://b.example:8443/x?token=2"} })
	inBubble(t, spec, func(t *testing.T, s *Server) {
		a, err := s.Call(t.Context(), request(t, "call x"))
		if err != nil {
			t.Fatal(err)
		}
		want := "{1 0 [{a.example/mcp true} {b.example:8443/x true} {2 true}] {0 0 0}}"
		if got := fmt.Sprint(s.Snapshot()); got != want {
			t.Errorf("snapshot %s, want %s", got, want)
		}
		_ = finish(a, nil)
	}, new(fake), new(fake), new(fake))
}

func TestAnAnswerPassesAsItIs(t *testing.T) {
	f := new(fake)
	inBubble(t, specOf(unchecked, attempts(1)), func(t *testing.T, s *Server) {
		if a, err := s.Call(t.Context(), message(t, `{"jsonrpc":"2.0","method":"notifications/x"}`)); err != nil || a.Status != 202 {
			t.Errorf("a notification: %v, %v; want 202", a, err)
		}
		const body = `{"jsonrpc":"2.0","id":1,"result":{"n":9007199254740993,"n":null}}`
		f.answers(func(context.Context, *upstream.Call) (*upstream.Answer, error) { return answerOf(body), nil })
		a, err := s.Call(t.Context(), request(t, "tools/list"))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(a.Body)
		if err != nil || string(got) != body || a.Status != 200 || a.Length != int64(len(body)) {
			t.Errorf("%d, %d bytes, %s, %v; want the answer as it was", a.Status, a.Length, got, err)
		}
		f.answers(func(context.Context, *upstream.Call) (*upstream.Answer, error) {
			return &upstream.Answer{Status: 200, Length: -1, Events: &script{events: []string{"1", "2", "3"}, end: io.EOF}}, nil
		})
		if a, err = s.Call(t.Context(), request(t, "call x")); err != nil {
			t.Fatal(err)
		}
		var events []string
		for a.Events.Ready() {
			e, err := a.Events.Next()
			if err != nil {
				t.Fatal(err)
			}
			events = append(events, string(e.Data))
		}
		if strings.Join(events, "") != "123" {
			t.Errorf("events %q, want 1 2 3", events)
		}
		_ = finish(a, nil)
	}, f)
}

func TestASessionOpensWhereAnEndpointIsReached(t *testing.T) {
	for kind, opens := range map[upstream.Kind]bool{upstream.Unreachable: true, upstream.Lost: false} {
		fakes := []*fake{newFake(fault(kind)), new(fake)}
		inBubble(t, specOf(unchecked), func(t *testing.T, s *Server) {
			s.endpoints[1].calls.Add(1) // the other has the fewest
			defer s.endpoints[1].calls.Add(-1)
			session, a, err := s.Open(t.Context(), request(t, mcp.MethodInitialize))
			if (err == nil) != opens || (session != nil) != opens || fakes[0].opens.Load() != 1 {
				t.Errorf("%s at the first endpoint: %v, %v after %d attempts there; want opened: %v, and one",
					kind.Reason(), session, err, fakes[0].opens.Load(), opens)
			}
			_ = a.Close()
		}, fakes...)
	}
}

func TestNobodyWaitsForAPlaceAtAnEndpointThatIsLeftAlone(t *testing.T) {
	f := new(fake)
	inBubble(t, specOf(unchecked, places(1, 10)), func(t *testing.T, s *Server) {
		session, _, err := s.Open(t.Context(), request(t, mcp.MethodInitialize))
		if err != nil {
			t.Fatal(err)
		}
		a, err := s.Call(t.Context(), request(t, "call x")) // which takes the only place
		if err != nil {
			t.Fatal(err)
		}
		f.fail.Store(status(503))
		for range 5 {
			_, _ = session.Call(t.Context(), message(t, `{"jsonrpc":"2.0","method":"notifications/x"}`))
		}
		begun := time.Now()
		wantKind(t, call(t.Context(), s, request(t, "call x")), upstream.Unreachable, "left alone")
		wantKind(t, finish(session.Call(t.Context(), request(t, "call x"))), upstream.Unreachable, "left alone")
		if took := time.Since(begun); took != 0 {
			t.Errorf("refused after %v, want at once", took)
		}
		_ = finish(a, nil)
	}, f)
}

// The same where what failed may be over: whoever finds no place has it asked, so that the next call is not refused.
func TestAnEndpointWithoutPlacesIsAskedWhetherItIsWell(t *testing.T) {
	f := new(fake)
	inBubble(t, specOf(places(1, 10)), func(t *testing.T, s *Server) {
		session, _, err := s.Open(t.Context(), request(t, mcp.MethodInitialize))
		if err != nil {
			t.Fatal(err)
		}
		a, err := s.Call(t.Context(), request(t, "call x"))
		if err != nil {
			t.Fatal(err)
		}
		f.fail.Store(fault(upstream.TimedOut))
		for range 5 {
			_, _ = session.Call(t.Context(), message(t, `{"jsonrpc":"2.0","method":"notifications/x"}`))
		}
		f.fail.Store(nil)
		wantKind(t, call(t.Context(), s, request(t, "call x")), upstream.Unreachable, "left alone")
		time.Sleep(2 * checkPause)
		if !s.Healthy() {
			t.Errorf("%d checks within %v of a refusal, and it is not well; want one that succeeds", f.checks.Load(), 2*checkPause)
		}
		_ = finish(a, nil)
	}, f)
}

func TestASessionWhoseEndpointAnswersInitializeWithAnErrorIsNone(t *testing.T) {
	f := new(refusing)
	s := New([]upstream.Server{f}, specOf(unchecked), Options{})
	defer closeServer(t, s)
	session, a, err := s.Open(t.Context(), request(t, mcp.MethodInitialize))
	if session != nil || a == nil || err != nil {
		t.Errorf("session %v, answer %v, %v; want the answer alone", session, a, err)
	}
}

type refusing struct{ fake }

func (*refusing) Open(context.Context, *upstream.Call) (upstream.Session, *upstream.Answer, error) {
	return nil, answerOf(`{"jsonrpc":"2.0","id":0,"error":{"code":-32602,"message":"no"}}`), nil
}
