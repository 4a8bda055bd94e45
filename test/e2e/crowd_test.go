package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// crowd is stateless clients of one server with sessions, all of them asked at once.
type crowd struct {
	clients []*asker
	texts   []string // what each of them is about
	states  []*answered
}

// everyone lets every client do something at the same time.
func (c *crowd) everyone(t *testing.T, do func(i int) error) {
	t.Helper()
	var wait sync.WaitGroup
	order := rand.Perm(len(c.clients))
	for _, i := range order {
		wait.Go(func() {
			if err := do(i); err != nil {
				t.Errorf("%s: %v", c.texts[i], err)
			}
		})
	}
	wait.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// own checks that all that came to a client is its own, and that as much came as its level of logs has.
func (c *crowd) own(i int, r *answered, err error) error {
	if err != nil {
		return err
	}
	want := map[string]int{"": 1, "error": 2, "debug": 4}[c.clients[i].level]
	if len(r.Before) != want {
		return fmt.Errorf("%d messages came before the answer, want %d: %q", len(r.Before), want, r.Before)
	}
	for _, m := range append(r.Before, r.raw) {
		if n := strings.Count(m, c.texts[i]); n == 0 || n != strings.Count(m, "client-") {
			return fmt.Errorf("%s came to it", m)
		}
	}
	return nil
}

// metric is the value of one of a sidecar's metrics without labels.
func (s *sidecar) metric(t testing.TB, name string) float64 {
	t.Helper()
	_, body, err := get(t, s.admin, "/metrics")
	m := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindStringSubmatch(body)
	if err != nil || m == nil {
		t.Fatalf("/metrics has no %s (%v)", name, err)
	}
	v, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestACrowdThatIsAskedAtOnce(t *testing.T) {
	t.Parallel()
	const size = 200
	w := newWorkshop("workshop", versionLegacy).serve(t)
	s, _ := fileSidecar(t, nil, upstream("workshop", fmt.Sprintf("http: {url: %q}, bridge: {maxHeldCalls: %d, sessionIdle: 1s}", w.url, size)),
		binding("workshop", "/mcp", "workshop", ""))
	s.serves()
	before, sessions := s.metric(t, "go_goroutines"), w.sessions()

	shared := &http.Transport{MaxIdleConnsPerHost: size}
	c := &crowd{states: make([]*answered, size)}
	for i := range size {
		a := &asker{http: &http.Client{Transport: shared}, url: s.url + "/mcp", level: []string{"", "error", "debug"}[i%3]}
		if i%2 == 0 { // the others share a session of the server's
			a.http = &http.Client{Transport: bearer{fmt.Sprint("user ", i%20), shared}}
		}
		c.clients, c.texts = append(c.clients, a), append(c.texts, fmt.Sprintf("client-%03d.", i))
	}
	var mu sync.Mutex
	c.everyone(t, func(i int) error {
		r, err := c.clients[i].call(within(t), strconv.Itoa(i), "quiz", c.texts[i], "", "")
		mu.Lock()
		c.states[i] = r
		mu.Unlock()
		if err := c.own(i, r, err); err != nil || r.Result.ResultType != "input_required" {
			return fmt.Errorf("%v (%w), want a question", r, err)
		}
		return nil
	})
	// All are held now. There is no place for one more, whom that is told at once.
	r, err := c.clients[0].call(within(t), `"more"`, "ask", "client-more", "", "")
	if err != nil || r.Error == nil || r.Error.Data.Reason != "upstream_overloaded" || r.Took > soon {
		t.Errorf("one more got %v (%v), want upstream_overloaded", r, err)
	}
	wants := map[bool]string{false: "input_required", true: "complete"}
	for round := range 2 {
		c.everyone(t, func(i int) error {
			q := c.states[i]
			r, err := c.clients[i].call(within(t), strconv.Itoa(1000*(round+1)+i), "quiz", c.texts[i], q.Result.RequestState, q.accept(c.texts[i]))
			mu.Lock()
			c.states[i] = r
			mu.Unlock()
			if err := c.own(i, r, err); err != nil || r.Result.ResultType != wants[round == 1] {
				return fmt.Errorf("answer %d got %v (%w), want %s", round, r, err, wants[round == 1])
			}
			return nil
		})
	}
	for i, text := range c.texts {
		if want := fmt.Sprintf("0 %s:accept:%[1]s;1 %[1]s:accept:%[1]s", text); c.states[i].text() != want {
			t.Errorf("%s got %v, want %q", text, c.states[i], want)
		}
		if n := w.times("quiz", text); n != 1 {
			t.Errorf("%s ran %d times, want 1", text, n)
		}
	}
	shared.CloseIdleConnections()
	leavesNothing(t, s, w, before, sessions)
}

// leavesNothing waits until a sidecar has as many goroutines, and sessions at the server, as before.
func leavesNothing(t *testing.T, s *sidecar, w *workshop, before float64, sessions int) {
	t.Helper()
	eventually(t, "everything is let go", func() error {
		now, left := s.metric(t, "go_goroutines"), w.sessions()
		if now > before+5 || left > sessions { // a few are connections that idle
			return fmt.Errorf("%v goroutines, %v at first; %d sessions at the server, %d at first", now, before, left, sessions)
		}
		return nil
	})
}

func TestACrowdThatLeaves(t *testing.T) {
	t.Parallel()
	const size = 60
	w := newWorkshop("workshop", versionLegacy).serve(t)
	s, _ := fileSidecar(t, nil, upstream("workshop", fmt.Sprintf("http: {url: %q}, bridge: {heldTimeout: 1s, sessionIdle: 1s}", w.url)),
		binding("workshop", "/mcp", "workshop", ""))
	s.serves()
	before, sessions := s.metric(t, "go_goroutines"), w.sessions()
	shared := &http.Transport{MaxIdleConnsPerHost: size}
	var wait sync.WaitGroup
	for i := range size {
		a := &asker{http: &http.Client{Transport: shared}, url: s.url + "/mcp"}
		text := fmt.Sprintf("client-%03d.", i)
		wait.Go(func() {
			switch i % 3 {
			case 0: // never comes back with answers
				if r, err := a.call(within(t), "1", "ask", text, "", ""); err != nil || r.Result.ResultType != "input_required" {
					t.Errorf("%s: %v (%v)", text, r, err)
				}
			case 1: // leaves while the tool works
				ctx, cancel := context.WithCancel(t.Context())
				go func() { w.begins(t, "wait", text); cancel() }()
				if r, err := a.call(ctx, "1", "wait", text, "", ""); err == nil {
					t.Errorf("%s: %v", text, r)
				}
			case 2: // listens, and leaves once it is heard
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				if err := a.listens(ctx, `"toolsListChanged":true`, func(string) { cancel() }); err != nil {
					t.Errorf("%s: %v", text, err)
				}
			}
		})
	}
	wait.Wait()
	eventually(t, "the server's tools have ended", func() error {
		for i := range size {
			text := fmt.Sprintf("client-%03d.", i)
			if n := w.atWork("ask", text) + w.atWork("wait", text); n > 0 {
				return fmt.Errorf("not that of %s", text)
			}
		}
		return nil
	})
	shared.CloseIdleConnections()
	leavesNothing(t, s, w, before, sessions)
}

// begins waits until a tool runs with a text.
func (w *workshop) begins(t testing.TB, tool, text string) {
	for deadline := time.Now().Add(patience); w.atWork(tool, text) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("%s %q does not run", tool, text)
			return
		}
	}
}

// listens opens a subscriptions/listen and hands every message on, until ctx or the stream ends. The first has to be the
// acknowledgement.
func (a *asker) listens(ctx context.Context, notifications string, each func(message string)) error {
	res, err := a.post(ctx, `"listen"`, "subscriptions/listen", "", `"notifications":{`+notifications+`}`)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	first := true
	var wrong error
	err = events(res.Body, func(data string) {
		var m struct{ Method string }
		if err := json.Unmarshal([]byte(data), &m); err != nil || first && m.Method != "notifications/subscriptions/acknowledged" {
			wrong = fmt.Errorf("first came %s (%w)", data, err)
		}
		first = false
		each(data)
	})
	if first && wrong == nil {
		wrong = fmt.Errorf("%d without an acknowledgement (%w)", res.StatusCode, err)
	}
	return wrong
}
