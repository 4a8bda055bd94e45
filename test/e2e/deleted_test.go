package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A sidecar that was deleted goes on serving its own clients, but no other sidecar has to do with it: whoever dials, and
// whether they are connected already. That holds without the control plane too, and ends with a new admission.
func TestADeletedSidecarHasNoKin(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	a, b, c := f.sidecar(t, "a"), f.sidecar(t, "b"), f.sidecar(t, "c")
	ann := newAsker(t, a.endpoint(), "ann")
	atB, atC := ann.at(b.endpoint()), ann.at(c.endpoint())

	// c goes on with a call of a's, and a with one of c's.
	ofA, ofC := ann.asked(t, "askWait", "of a"), atC.asked(t, "askWait", "of c")
	ended := make(chan *answered, 2)
	for text, way := range map[string]struct {
		*asker
		asked *answered
	}{"of a": {atC, ofA}, "of c": {ann, ofC}} {
		go func() {
			r, err := way.call(within(t), `"held"`, "askWait", text, way.asked.Result.RequestState, way.asked.accept("ann"))
			if err != nil {
				t.Error(err)
			}
			ended <- r
		}()
		f.workshop.waits(t, text)
	}
	heldAtA, heldAtB, heldAtC := ann.asked(t, "ask", "held at a"), atB.asked(t, "ask", "held at b"), atC.asked(t, "ask", "held at c")
	begun := time.Now()
	f.must("delete", "sidecar", "c")
	for range 2 {
		if r := <-ended; r == nil || r.Error == nil || r.Error.Data.Reason != "upstream_lost" {
			t.Errorf("a call between the two got %v, want upstream_lost", r)
		}
	}
	if took := time.Since(begun); took > soon {
		t.Errorf("what was under way between the two ended after %v, want less than %v", took, soon)
	} else {
		t.Logf("what was under way between the two ended %v after rigctl began", took)
	}
	c.says("no connection to the control plane", "deleted")

	atC.isRefused(t, "ask", "held at a", heldAtA, "another sidecar", "start it again")
	ann.isRefused(t, "ask", "held at c", heldAtC, "another sidecar", "start it again")
	atC.goesOn(t, "ask", "held at c", heldAtC, "held at c:accept:ann") // it is its own
	ann.goesOn(t, "ask", "held at b", heldAtB, "held at b:accept:ann")
	atB.goesOn(t, "ask", "held at a", heldAtA, "held at a:accept:ann")

	// The control plane is away, and the others have only what they kept.
	f.stop()
	b.stop()
	b.start()
	atB = ann.at(b.endpoint())
	q := atB.asked(t, "ask", "kept")
	atC.isRefused(t, "ask", "kept", q, "another sidecar", "start it again")
	ann.goesOn(t, "ask", "kept", q, "kept:accept:ann")

	f.start(t)
	c.stop()
	if err := os.Remove(filepath.Join(c.dir, "identity.pem")); err != nil { // so that it joins anew
		t.Fatal(err)
	}
	c.start()
	atC = ann.at(c.endpoint())
	eventually(t, "who has the node id now is one of the others again", func() error {
		q := atB.asked(t, "ask", "anew")
		if r := atC.retry(t, "ask", "anew", q, "ann"); r.text() != "anew:accept:ann" {
			return fmt.Errorf("its retry got %v", r)
		}
		return nil
	})
}
