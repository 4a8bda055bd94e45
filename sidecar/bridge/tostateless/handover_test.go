package tostateless

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// inBubble runs a test with a fake clock, against a server that listens.
func inBubble(t *testing.T, test func(t *testing.T, l *listening, c *client)) {
	synctest.Test(t, func(t *testing.T) {
		l := newListening()
		s := New(l, Options{Upstream: "new"})
		test(t, l, connect(t, s, "2025-11-25", `{}`))
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// told is what waits for the client once nothing happens any more: the method, and the resource if there is one.
func (c *client) told() (all []string) {
	c.t.Helper()
	out := c.listen()
	defer out.Close()
	for synctest.Wait(); out.Ready(); {
		e, err := out.Next()
		if err != nil {
			c.t.Fatal(err)
		}
		m, err := mcp.ScanAnswer(e.Data)
		if err != nil {
			c.t.Fatalf("%s: %v", e.Data, err)
		}
		all = append(all, strings.TrimSpace(strings.TrimPrefix(m.Method, "notifications/")+" "+string(m.Name)))
	}
	return all
}

func (c *client) want(what string, want ...string) {
	c.t.Helper()
	if got := c.told(); !slices.Equal(got, want) {
		c.t.Errorf("%s: told %q, want %q", what, got, want)
	}
}

func (c *client) subscribed(method string, uris ...string) {
	c.t.Helper()
	for _, uri := range uris {
		c.do(`1`, method, fmt.Sprintf(`{"uri":%q}`, uri)).has(c.t, `"result":{}`)
	}
}

func TestWhatIsOnItsWayWhenAnotherListenTakesThePlaceIsNotLost(t *testing.T) {
	inBubble(t, func(t *testing.T, l *listening, c *client) {
		c.subscribed(mcp.MethodResourcesSubscribe, "a", "b")
		l.stream(0).feed <- updated("a")
		l.stream(0).feed <- changed("tools")
		c.want("after it was widened", "resources/updated a", "tools/list_changed")
		c.subscribed(mcp.MethodResourcesUnsubscribe, "a")
		l.stream(1).feed <- updated("a")
		l.stream(1).feed <- updated("b")
		c.want("after it was narrowed", "resources/updated b")
		l.stream(1).feed <- changed("tools")
		l.stream(2).feed <- changed("tools")
		c.want("of both", "tools/list_changed")
		time.Sleep(handOver)
		synctest.Wait()
		if !l.stream(0).isClosed() || !l.stream(1).isClosed() || l.stream(2).isClosed() {
			t.Error("want the last listen open, and it alone")
		}
		c.want("of those that were closed")
	})
}

func TestFewListensAreReadThatAnotherHasReplaced(t *testing.T) {
	inBubble(t, func(t *testing.T, l *listening, c *client) {
		for i := range 3 * maxLeaving {
			c.subscribed(mcp.MethodResourcesSubscribe, fmt.Sprint(i))
		}
		synctest.Wait()
		open := 0
		for i := range l.count() {
			if !l.stream(i).isClosed() {
				open++
			}
		}
		if open != maxLeaving+1 {
			t.Errorf("%d of %d listens are open, want %d", open, l.count(), maxLeaving+1)
		}
		c.want("with nothing to tell")
	})
}

func TestWhatWasMissedBeforeASubscriptionIsTold(t *testing.T) {
	lists := []string{"tools/list_changed", "prompts/list_changed", "resources/list_changed", "resources/updated a"}
	t.Run("when the listen has ended", func(t *testing.T) {
		inBubble(t, func(t *testing.T, l *listening, c *client) {
			c.subscribed(mcp.MethodResourcesSubscribe, "a")
			close(l.stream(0).feed)
			synctest.Wait() // it is opened again after a pause, but for the next
			c.subscribed(mcp.MethodResourcesSubscribe, "b")
			c.want("after the gap", append(slices.Clone(lists), "resources/updated b")...)
		})
	})
	t.Run("when that shows only later", func(t *testing.T) {
		inBubble(t, func(t *testing.T, l *listening, c *client) {
			c.subscribed(mcp.MethodResourcesSubscribe, "a", "b")
			close(l.stream(0).feed)
			c.want("after the gap", append(slices.Clone(lists), "resources/updated b")...)
		})
	})
}

func TestNothingIsToldOfWhatTheClientUnsubscribed(t *testing.T) {
	inBubble(t, func(t *testing.T, l *listening, c *client) {
		c.subscribed(mcp.MethodResourcesSubscribe, "file:///a", "file:///a/b")
		tell := func() {
			for _, uri := range []string{"file:///a", "file:///a/c", "file:///a/b/c", "file:///ab", "other"} {
				l.stream(1).feed <- updated(uri)
			}
			synctest.Wait()
		}
		tell()
		c.subscribed(mcp.MethodResourcesUnsubscribe, "file:///a")
		left := []string{"resources/updated file:///a/b/c", "resources/updated file:///ab", "resources/updated other"}
		c.want("of what waited", left...)
		tell()
		c.want("of what came after", left...)
	})
}

// An acknowledgement at the last moment is in time or not, and never both.
func TestAListenThatWasConfirmedAtTheLastMomentGoesOn(t *testing.T) {
	for range 50 {
		inBubble(t, func(t *testing.T, l *listening, c *client) {
			l.grant = func(sent) string { return "" }
			time.AfterFunc(10*time.Second, func() {
				l.stream(0).feed <- `{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"notifications":{"resourceSubscriptions":["a"]}}}`
			})
			_, err := c.session.Call(t.Context(), requestCall(t, `1`, mcp.MethodResourcesSubscribe, `{"uri":"a"}`))
			synctest.Wait()
			if ended := l.stream(0).isClosed(); ended != (err != nil) {
				t.Errorf("answered with %v, and the listen is over: %v", err, ended)
			}
		})
	}
}

func TestASubscriptionThatIsNeverAcknowledgedFailsInTime(t *testing.T) {
	inBubble(t, func(t *testing.T, l *listening, c *client) {
		c.subscribed(mcp.MethodResourcesSubscribe, "a")
		l.grant = func(sent) string { return "" }
		close(l.stream(0).feed)
		time.Sleep(3 * time.Second) // the listen is being opened again
		began := time.Now()
		_, err := c.session.Call(t.Context(), requestCall(t, `1`, mcp.MethodResourcesSubscribe, `{"uri":"b"}`))
		var failed *upstream.Error
		if !errors.As(err, &failed) || failed.Kind != upstream.TimedOut || !strings.Contains(err.Error(), "did not acknowledge") {
			t.Errorf("got %v, want a time-out that says for what", err)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("took %v, want a handshake's time at most", took)
		}
		began = time.Now()
		c.subscribed(mcp.MethodResourcesUnsubscribe, "a")
		if took := time.Since(began); took > acknowledgeWithin {
			t.Errorf("unsubscribing took %v, want %v at most", took, acknowledgeWithin)
		}
	})
}

func TestAnErrorInAnswerToAListenIsTriedAgainUnlessThereIsNone(t *testing.T) {
	for _, r := range []struct {
		code, least, most int
	}{{mcp.CodeInternalError, 4, 20}, {-31999, 4, 20}, {mcp.CodeMethodNotFound, 1, 1}} {
		t.Run(fmt.Sprint(r.code), func(t *testing.T) {
			inBubble(t, func(t *testing.T, l *listening, c *client) {
				inner := l.script
				l.become(func(s sent) (*upstream.Answer, error) { return s.error(r.code, ""), nil })
				out := c.listen()
				defer out.Close()
				time.Sleep(time.Minute)
				if n := len(l.calls(mcp.MethodListen)); n < r.least || n > r.most {
					t.Errorf("%d listens in a minute, want %d to %d", n, r.least, r.most)
				}
				l.become(inner)
				time.Sleep(mostRedial)
				synctest.Wait()
				if opened := l.count() > 0; opened != (r.most > 1) {
					t.Errorf("it listens in the end: %v", opened)
				}
			})
		})
	}
}

func TestCloseWaitsNoLongerThanItIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		l := newListening()
		l.script = func(s sent) (*upstream.Answer, error) {
			<-release // whatever its caller says
			return s.error(mcp.CodeMethodNotFound, ""), nil
		}
		s := New(l, Options{Upstream: "new"})
		c := connect(t, s, "2025-11-25", `{}`)
		out := c.listen()
		defer out.Close()
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		began := time.Now()
		if err := s.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("got %v after %v, want the deadline in a second", err, time.Since(began))
		}
		close(release)
	})
}
