package e2e

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Two sidecars in a row, each of which may have to translate: what the server asks still gets to the client.
func TestTwoSidecarsInARow(t *testing.T) {
	t.Parallel()
	var behind, front []string
	for _, era := range eras {
		behind = append(behind, httpUpstream(era.name, newWorkshop(era.name, era.version).serve(t).url), binding(era.name, era.path, era.name, ""))
	}
	second, _ := fileSidecar(t, nil, behind...)
	for _, between := range eras {
		for _, server := range eras {
			name := between.name + "-" + server.name
			front = append(front, upstream(name, fmt.Sprintf("http: {url: %q}, era: %s", second.url+server.path, between.name)),
				binding(name, "/"+name, name, ""))
		}
	}
	first, _ := fileSidecar(t, nil, front...)
	for _, client := range eras {
		for _, between := range eras {
			for _, server := range eras {
				name := between.name + "-" + server.name
				t.Run(client.name+"-"+name, func(t *testing.T) {
					t.Parallel()
					c := connectSDK(t, first.url+"/"+name, client.version, new(heard).options())
					wantText(t, c, "echo", input{name}, name)
					wantText(t, c, "ask", input{name}, name+":accept:asked who owns "+name)
					if tools := allTools(t, c); len(tools) < 10 {
						t.Errorf("tools are %q", tools)
					}
				})
			}
		}
	}
}

// A request that comes round is refused, at once, whichever wire it goes over, and also while no sidecar knows yet which
// wires the next one speaks.
func TestALoopOfSidecarsIsRefused(t *testing.T) {
	t.Parallel()
	addresses := []string{freeAddress(t), freeAddress(t)}
	type wire struct{ name, path string }
	wires := []wire{{"auto", "/auto"}}
	for _, era := range eras {
		wires = append(wires, wire{era.name, era.path})
	}
	for i := range addresses {
		var resources []string
		for _, era := range wires {
			resources = append(resources, upstream(era.name, fmt.Sprintf("http: {url: %q}, era: %s", "http://"+addresses[1-i]+era.path, era.name)),
				binding(era.name, era.path, era.name, ""))
		}
		fileSidecar(t, []string{"--listen", addresses[i]}, resources...)
	}
	for _, era := range wires {
		begun := time.Now()
		res, err := newAsker(t, "http://"+addresses[0]+era.path, "").post(within(t), "1", "tools/call", "echo", `"name":"echo","arguments":{}`)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		named := strings.Contains(string(body), `"id":1`) && strings.Contains(string(body), `"source":"outrigger","reason":"loop"`)
		if took := time.Since(begun); err != nil || !named || res.StatusCode != http.StatusLoopDetected || took > soon {
			t.Errorf("%s: a call that comes round got %d %s (%v) after %v, want 508 with its id and reason loop",
				era.name, res.StatusCode, body, err, took)
		}
	}
}

// A federation's calls are held where they came, too, and found from elsewhere by its names.
func TestAQuestionThroughAFederationIsAnsweredAtAnother(t *testing.T) {
	t.Parallel()
	modern := newWorkshop("modern", versionStateless).serve(t)
	f := startFleet(t, httpUpstream("modern", modern.url), federation("all", "/all", "", "workshop", "modern"))
	a, b := f.sidecar(t, "a"), f.sidecar(t, "b")
	ann := newAsker(t, a.url+"/all", "ann")
	annAtB := ann.at(b.url + "/all")
	q := ann.asked(t, "workshop_ask", "cup")
	annAtB.isRefused(t, "workshop_quiz", "cup", q, "another request")
	newAsker(t, b.url+"/all", "bob").isRefused(t, "workshop_ask", "cup", q, "to this caller")
	annAtB.goesOn(t, "workshop_ask", "cup", q, "cup:accept:ann")
	f.ran(t, "ask", "cup", 1)
	annAtB.goesOn(t, "modern_ask", "pot", ann.asked(t, "modern_ask", "pot"), "pot:accept:ann")
}

// What is held ends with the sidecar, in good order, and with its server's resource.
func TestHeldCallsEndWithWhatHoldsThem(t *testing.T) {
	t.Parallel()
	old, modern := newWorkshop("old", versionLegacy).serve(t), newWorkshop("modern", versionStateless).serve(t)
	resources := []string{httpUpstream("old", old.url), binding("old", "/mcp", "old", "")}
	s, file := fileSidecar(t, []string{"--drain-timeout", "2s"}, resources...)
	a := newAsker(t, s.url+"/mcp", "")
	q := a.asked(t, "ask", "replaced")
	writeFile(t, file, strings.Join([]string{httpUpstream("old", modern.url), resources[1]}, "---\n"))
	s.signal(syscall.SIGHUP)
	eventually(t, "the other server is in its place", func() error {
		if _, err := a.call(within(t), "1", "echo", "x", "", ""); err != nil || modern.times("echo", "x") == 0 {
			return fmt.Errorf("it is not (%w)", err)
		}
		return nil
	})
	if r := a.retry(t, "ask", "replaced", q, "ann"); r.text() != "" {
		t.Errorf("the retry at another server got %v", r)
	}
	s.stop()

	s, _ = fileSidecar(t, []string{"--drain-timeout", "2s"}, resources...)
	newAsker(t, s.url+"/mcp", "").asked(t, "ask", "stopped")
	begun := time.Now()
	s.stop()
	if took := time.Since(begun); took > 3*soon {
		t.Errorf("with a held call, it stopped after %v, want less than %v", took, 3*soon)
	}
	eventually(t, "the server's tools have ended", func() error {
		if n := old.atWork("ask", "replaced") + old.atWork("ask", "stopped"); n != 0 {
			return fmt.Errorf("%d have not", n)
		}
		return nil
	})
}

// Where an operator wants all or nothing, a list fails when a server does.
func TestAListThatMayNotBePartialFails(t *testing.T) {
	t.Parallel()
	good := newWorkshop("good", versionLegacy).serve(t)
	s, _ := fileSidecar(t, nil, httpUpstream("good", good.url), httpUpstream("refuses", "http://"+freeAddress(t)),
		federation("all", "/all", ", partialFailure: refuse", "good", "refuses"))
	a := newAsker(t, s.url+"/all", "")
	r, err := a.send(within(t), "1", "tools/list", "", "")
	if err != nil || r.Error == nil || !strings.Contains(r.raw, "refuses") || r.Status != http.StatusOK {
		t.Errorf("tools/list answered %v (%v), want an error that names the server", r, err)
	}
	if r, err := a.call(within(t), "1", "good_echo", "x", "", ""); err != nil || r.text() != "x" {
		t.Errorf("a call of the one that is well answered %v (%v)", r, err)
	}
}
