package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// fleet is a control plane and sidecars in front of one server with sessions.
type fleet struct {
	*plane
	workshop *workshop
	token    string // file
}

const fleetPath = "/fleet"

func startFleet(t testing.TB, specs ...string) *fleet {
	t.Helper()
	f := &fleet{plane: startPlane(t, filepath.Join(t.TempDir(), "data"))}
	f.workshop = newWorkshop("workshop", versionLegacy).serve(t)
	f.token = f.plane.join("--uses", "9")
	f.apply(append(specs, httpUpstream("workshop", f.workshop.url), binding("fleet", fleetPath, "workshop", ""))...)
	return f
}

// kin is one of the sidecars, and how to run it again.
type kin struct {
	*sidecar
	fleet     *fleet
	node, dir string
	args      []string
}

// sidecar runs one that the others can ask, unless there are args.
func (f *fleet) sidecar(t testing.TB, node string, args ...string) *kin {
	t.Helper()
	if args == nil {
		args = []string{"--peer-listen", freeAddress(t)}
	}
	k := &kin{fleet: f, node: node, dir: t.TempDir(), args: append([]string{"--access-log=false"}, args...)}
	return k.start()
}

func (k *kin) start() *kin {
	k.sidecar = k.fleet.joinSidecar(k.node, k.fleet.token, k.dir, nil, k.args...)
	k.serves()
	return k
}

func (k *kin) endpoint() string { return k.url + fleetPath }

// ran checks how often a tool ran with a text.
func (f *fleet) ran(t testing.TB, tool, text string, want int) {
	t.Helper()
	if got := f.workshop.times(tool, text); got != want {
		t.Errorf("%s %q ran %d times, want %d", tool, text, got, want)
	}
}

func TestAQuestionOfOneSidecarIsAnsweredAtAnother(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	a, b := f.sidecar(t, "a"), f.sidecar(t, "b")
	ann := newAsker(t, a.endpoint(), "ann")
	annAtB := ann.at(b.endpoint())

	first := ann.asked(t, "ask", "cup")
	f.ran(t, "ask", "cup", 1)
	annAtB.goesOn(t, "ask", "cup", first, "cup:accept:ann")
	f.ran(t, "ask", "cup", 1)
	for _, again := range []*asker{ann, annAtB} {
		again.isRefused(t, "ask", "cup", first, "tart it again")
	}

	// What the call says meanwhile comes to where its client is, and every question may be answered elsewhere.
	ann.level, annAtB.level = "error", "error"
	at, q := []*asker{annAtB, ann, annAtB}, ann.asked(t, "ask3", "pot")
	states := []*answered{q}
	for i, here := range at {
		r := here.retry(t, "ask3", "pot", q, fmt.Sprint("ann", i))
		if len(r.Before) != 2 || !containsAll(fmt.Sprint(r.Before), []string{`"error of pot"`, `"message":"pot"`, `"progressToken":"retry"`}) {
			t.Errorf("before answer %d came %q, want a log and progress", i, r.Before)
		}
		if i == 2 {
			if want := "0 pot:accept:ann0;1 pot:accept:ann1;2 pot:accept:ann2"; r.text() != want {
				t.Errorf("ask3 answered %v, want %q", r, want)
			}
			break
		}
		if r.Result.ResultType != "input_required" {
			t.Fatalf("answer %d got %v, want the next question", i, r)
		}
		if i == 1 {
			annAtB.isRefused(t, "ask3", "pot", states[0], "used already")
		}
		states, q = append(states, r), r
	}
	f.ran(t, "ask3", "pot", 1)

	// A client that leaves there is one that leaves.
	q = ann.asked(t, "askWait", "jug")
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := annAtB.call(ctx, `"leaves"`, "askWait", "jug", q.Result.RequestState, q.accept("ann"))
		left <- err
	}()
	f.workshop.waits(t, "jug")
	leave()
	if err := <-left; err == nil {
		t.Error("a call that was given up went well")
	}
	eventually(t, "the server sees that the client left", func() error {
		if n := f.workshop.cancels("jug"); n != 1 {
			return fmt.Errorf("%d cancels", n)
		}
		return nil
	})
	manyQuestionsAtOnce(t, f, a, b)
	for _, k := range []*kin{a, b} {
		k.stop()
	}
}

// manyQuestionsAtOnce checks that nobody gets another's answer, with clients that come back elsewhere.
func manyQuestionsAtOnce(t *testing.T, f *fleet, a, b *kin) {
	t.Helper()
	var wait sync.WaitGroup
	for i := range 40 {
		wait.Go(func() {
			text := fmt.Sprint("client ", i)
			c := newAsker(t, a.endpoint(), fmt.Sprint("user ", i%4))
			at := []string{b.endpoint(), a.endpoint()}
			if i%2 == 0 {
				c, at = c.at(b.endpoint()), []string{a.endpoint(), b.endpoint()}
			}
			r, err := c.call(within(t), "0", "quiz", text, "", "")
			for round, url := range at {
				if err != nil || r.Result.ResultType != "input_required" {
					t.Errorf("%s: %v (%v), want question %d", text, r, err, round)
					return
				}
				r, err = c.at(url).call(within(t), fmt.Sprint(round+1), "quiz", text, r.Result.RequestState, r.accept(text))
			}
			if want := fmt.Sprintf("0 %s:accept:%[1]s;1 %[1]s:accept:%[1]s", text); err != nil || r.text() != want {
				t.Errorf("%s: %v (%v), want %q", text, r, err, want)
			}
			f.ran(t, "quiz", text, 1)
		})
	}
	wait.Wait()
}

func TestAHolderThatIsGoneIsAClearError(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	a, b := f.sidecar(t, "a"), f.sidecar(t, "b")
	ann := newAsker(t, a.endpoint(), "ann")
	annAtB := ann.at(b.endpoint())

	killed, restarted := ann.asked(t, "ask", "killed"), ann.asked(t, "ask", "restarted")
	a.kill()
	annAtB.isRefused(t, "ask", "killed", killed, "another sidecar", "start it again")
	f.ran(t, "ask", "killed", 1)
	annAtB.goesOn(t, "ask", "anew", annAtB.asked(t, "ask", "anew"), "anew:accept:ann")

	a.start()
	annAtB.isRefused(t, "ask", "restarted", restarted, "tart it again")
	ann.at(a.endpoint()).isRefused(t, "ask", "restarted", restarted, "tart it again")
	f.ran(t, "ask", "restarted", 1)
	ann = ann.at(a.endpoint())
	annAtB.goesOn(t, "ask", "after", ann.asked(t, "ask", "after"), "after:accept:ann")

	// One that hangs is not waited for.
	q := ann.asked(t, "ask", "frozen")
	a.freeze()
	r := annAtB.retry(t, "ask", "frozen", q, "ann")
	if r.Error == nil || r.Error.Code != -32602 || r.Took > 5*soon {
		t.Errorf("a retry whose holder hangs: %v, want -32602 within %v", r, 5*soon)
	}
	a.signal(syscall.SIGCONT)
	f.ran(t, "ask", "frozen", 1)

	// While a retry is forwarded, too.
	q = ann.asked(t, "askWait", "during")
	ended := make(chan *answered, 1)
	go func() {
		r, err := annAtB.call(within(t), `"during"`, "askWait", "during", q.Result.RequestState, q.accept("ann"))
		if err != nil {
			t.Error(err)
		}
		ended <- r
	}()
	f.workshop.waits(t, "during")
	a.kill()
	if r := <-ended; r == nil || r.Error == nil || r.Error.Data.Source != "outrigger" || r.Error.Data.Reason != "upstream_lost" {
		t.Errorf("a forwarded retry whose holder was killed: %v, want upstream_lost", r)
	}
	f.ran(t, "askWait", "during", 1)
	b.stop()
}

// A sidecar that stops finishes what it goes on with for another, as it does its own clients' calls.
func TestADrainWaitsForCallsOfOtherSidecars(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	peerPort := freeAddress(t)
	a, b := f.sidecar(t, "a", "--peer-listen", peerPort), f.sidecar(t, "b")
	ann := newAsker(t, a.endpoint(), "ann")
	q := ann.asked(t, "askWait", "vase")
	ended := make(chan *answered, 1)
	go func() {
		r, err := ann.at(b.endpoint()).call(within(t), `"vase"`, "askWait", "vase", q.Result.RequestState, q.accept("ann"))
		if err != nil {
			t.Error(err)
		}
		ended <- r
	}()
	f.workshop.waits(t, "vase")
	a.signal(syscall.SIGTERM)
	for _, address := range []string{strings.TrimPrefix(a.url, "http://"), peerPort} {
		eventually(t, "new connections are refused", func() error {
			c, err := net.Dial("tcp", address)
			if err == nil {
				c.Close()
				return errors.New("connected")
			}
			return nil
		})
	}
	f.workshop.close() // which ends the tool
	if r := <-ended; r == nil || r.Error != nil || !strings.Contains(r.raw, "context canceled") {
		t.Errorf("the call that was under way got %v, want what the tool said", r)
	}
	if code := a.exit(patience); code != 0 {
		t.Errorf("the sidecar ended with status %d, want 0", code)
	}
	b.stop()
}

func TestAStateIsRefusedThatIsNotTheCallersOwn(t *testing.T) {
	t.Parallel()
	f := startFleet(t, binding("aside", "/aside", "workshop", ""))
	a, b := f.sidecar(t, "a"), f.sidecar(t, "b")
	alone := f.sidecar(t, "alone", "--log-level", "info") // nobody can ask it
	foreign := startFleet(t).sidecar(t, "foreign")
	ann := newAsker(t, a.endpoint(), "ann")
	annAtB := ann.at(b.endpoint())
	q := ann.asked(t, "ask", "mine")

	for _, k := range []*kin{a, b} {
		newAsker(t, k.endpoint(), "bob").isRefused(t, "ask", "mine", q, "another caller")
		newAsker(t, k.endpoint(), "").isRefused(t, "ask", "mine", q, "another caller")
		here := ann.at(k.endpoint())
		ann.at(k.url+"/aside").isRefused(t, "ask", "mine", q, "not one that was given here") // another binding of the server
		here.isRefused(t, "ask", "yours", q, "another request")
		here.isRefused(t, "quiz", "mine", q, "another request")
		for _, at := range []int{0, len(q.Result.RequestState) / 2, len(q.Result.RequestState) - 2} {
			here.isRefused(t, "ask", "mine", q.altered(at))
		}
	}
	ann.at(foreign.endpoint()).isRefused(t, "ask", "mine", q)
	f.ran(t, "ask", "mine", 1)
	annAtB.goesOn(t, "ask", "mine", q, "mine:accept:ann") // nothing of that has spoilt it

	here := ann.at(alone.endpoint())
	q = here.asked(t, "ask", "far")
	annAtB.isRefused(t, "ask", "far", q, "another sidecar", "start it again")
	here.goesOn(t, "ask", "far", q, "far:accept:ann")
	f.ran(t, "ask", "far", 1)
}

// altered is a question with one character of its state changed.
func (a *answered) altered(at int) *answered {
	other := *a
	state := []byte(a.Result.RequestState)
	if state[at]++; a.Result.RequestState[at] == 'Z' || a.Result.RequestState[at] == 'z' || a.Result.RequestState[at] == '9' {
		state[at] = 'A'
	}
	other.Result.RequestState = string(state)
	return &other
}

func TestAStateTooOldIsRefusedAndItsCallCancelled(t *testing.T) {
	t.Parallel()
	w := newWorkshop("workshop", versionLegacy).serve(t)
	s, _ := fileSidecar(t, nil, upstream("workshop", fmt.Sprintf("http: {url: %q}, bridge: {heldTimeout: 1s}", w.url)),
		binding("fleet", fleetPath, "workshop", ""))
	ann := newAsker(t, s.url+fleetPath, "")
	q := ann.asked(t, "ask", "late")
	eventually(t, "the server's tool has ended", func() error {
		if n := w.atWork("ask", "late"); n != 0 {
			return fmt.Errorf("%d runs have not", n)
		}
		return nil
	})
	ann.isRefused(t, "ask", "late", q, "tart it again")
	if n := w.times("ask", "late"); n != 1 {
		t.Errorf("it ran %d times, want 1", n)
	}
}
