package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
)

const (
	tasksExtension = "io.modelcontextprotocol/tasks"
	declaresTasks  = `{"elicitation":{"form":{}},"extensions":{"io.modelcontextprotocol/tasks":{}}}`

	// What a tasker says of its task, but for its id.
	taskMade     = `"status":"working","createdAt":"2026-08-01T10:00:00Z", "ttlMs":9007199254740993`
	taskAsks     = `"status":"input_required","inputRequests":{"own":{"method":"elicitation/create","params":{"message":"who owns it"}}}`
	taskAnswered = `{"own":{"action":"accept","content":{"owner":"ann"}}}`
)

// newTasker makes a server whose tool makes a task where the client knows tasks. Its id is the same at every one of them.
// The task asks its client once, and ends when it is answered or cancelled.
func newTasker(name string) *script {
	const unknown = `"error":{"code":-32602,"message":"no such task here"}`
	var mu sync.Mutex
	state := taskAsks
	// become ends the task, and acknowledges that.
	become := func(q *scripted, next string) string {
		if q.Params.TaskID != "t/1" {
			return unknown
		}
		mu.Lock()
		defer mu.Unlock()
		state = next
		return `"result":{"resultType":"complete"}`
	}
	return &script{
		version: versionStateless, capabilities: `{"tools":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}`,
		answers: map[string]func(*scripted) string{
			"tools/list": always(`"result":{"resultType":"complete","tools":[{"name":"make","inputSchema":{"type":"object"}}],"ttlMs":60000,"cacheScope":"public"}`),
			"tools/call": func(q *scripted) string {
				if !strings.Contains(q.raw, tasksExtension) {
					return `"result":{"resultType":"complete","content":[{"type":"text","text":"made at once"}]}`
				}
				return `"result":{"resultType":"task", "taskId" : "t/1",` + taskMade + `}`
			},
			"tasks/get": func(q *scripted) string {
				mu.Lock()
				defer mu.Unlock()
				if q.Params.TaskID != "t/1" {
					return unknown
				}
				return `"result":{"resultType":"complete","taskId":"t/1",` + state + `}`
			},
			"tasks/update": func(q *scripted) string { return become(q, taskDone(name)) },
			"tasks/cancel": func(q *scripted) string { return become(q, `"status":"cancelled"`) },
		},
	}
}

// taskDone is what a tasker says of its task at the end. The id in the result is no id of a task.
func taskDone(name string) string {
	return fmt.Sprintf(`"status":"completed","result":{"taskId":"t/1","content":[{"type":"text","text":%q}]}`, name)
}

// makes makes a task, and returns its id.
func (a *asker) makes(t *testing.T, tool string) (id string) {
	t.Helper()
	var made struct{ ResultType, TaskID string }
	r := a.asks(t, "tools/call", tool, fmt.Sprintf(`"name":%q,"arguments":{}`, tool))
	if err := json.Unmarshal([]byte(r.result(t)), &made); err != nil || made.ResultType != "task" || made.TaskID == "" {
		t.Fatalf("%s answered %v (%v), want a task", tool, r, err)
	}
	if want := fmt.Sprintf(`{"resultType":"task", "taskId" : %q,%s}`, made.TaskID, taskMade); r.result(t) != want {
		t.Errorf("%s answered\n%s, want\n%s", tool, r.result(t), want)
	}
	return made.TaskID
}

// taskIs checks what a client is told of a task.
func (a *asker) taskIs(t *testing.T, id, want string) {
	t.Helper()
	want = fmt.Sprintf(`{"resultType":"complete","taskId":%q,%s}`, id, want)
	if got := a.asks(t, "tasks/get", id, fmt.Sprintf(`"taskId":%q`, id)).result(t); got != want {
		t.Errorf("the task is\n%s, want\n%s", got, want)
	}
}

// tells updates or cancels a task.
func (a *asker) tells(t *testing.T, method, id, more string) {
	t.Helper()
	if got := a.asks(t, method, id, fmt.Sprintf(`"taskId":%q%s`, id, more)).result(t); got != `{"resultType":"complete"}` {
		t.Errorf("%s was answered with %s", method, got)
	}
}

// A server that is alone behind its endpoint sees one client, so it is the sidecar that tells whose a task is.
func TestTasksOfOneServerBelongToTheirCaller(t *testing.T) {
	t.Parallel()
	server := newTasker("one").serve(t)
	s, _ := fileSidecar(t, nil, httpUpstream("one", server.url), binding("one", "/one", "one", ""), binding("other", "/other", "one", ""))
	ann := newAsker(t, s.url+"/one", "ann").declaring(declaresTasks)
	if r := ann.asks(t, "server/discover", "", ""); !strings.Contains(r.raw, tasksExtension) {
		t.Errorf("discover answered %v, want %s offered", r, tasksExtension)
	}
	id := ann.makes(t, "make")
	if id == "t/1" {
		t.Error("the task has the server's own id, by which it is everybody's")
	}
	newAsker(t, s.url+"/one", "bob").declaring(declaresTasks).hasNoTask(t, id)
	newAsker(t, s.url+"/one", "").declaring(declaresTasks).hasNoTask(t, id)
	ann.at(s.url+"/other").hasNoTask(t, id) // another endpoint of the same server
	ann.hasNoTask(t, "t/1")                 // which is all that was known of a task before ids were sealed
	if r := ann.declaring(askable).asks(t, "tasks/get", "t/1", `"taskId":"t/1"`); r.Error == nil || r.Error.Code != -32021 {
		t.Errorf("without the extension: %v, want -32021", r)
	}
	if n := server.heardOf(`"tasks/`); n != 0 {
		t.Errorf("the server was asked %d times about a task by callers that have none", n)
	}

	ann.taskIs(t, id, taskAsks)
	ann.tells(t, "tasks/update", id, `,"inputResponses":`+taskAnswered)
	ann.taskIs(t, id, taskDone("one"))
	if server.heardOf(`"tasks/update"`, `"taskId":"t/1"`, `"inputResponses":`+taskAnswered) != 1 {
		t.Error("the answer to the task's question is not as the client wrote it")
	}
}

// A file's sidecars have keys of their own, and a control plane's have them in common: there a task is found at each of
// them, and after a restart.
func TestATaskIsFoundAtEverySidecarOfAControlPlane(t *testing.T) {
	t.Parallel()
	f := startFleet(t, httpUpstream("one", newTasker("one").serve(t).url), binding("one", "/one", "one", ""))
	a, b := f.sidecar(t, "a"), f.sidecar(t, "b")
	ann := newAsker(t, a.url+"/one", "ann").declaring(declaresTasks)
	id := ann.makes(t, "make")
	ann.at(b.url+"/one").taskIs(t, id, taskAsks)
	newAsker(t, b.url+"/one", "bob").declaring(declaresTasks).hasNoTask(t, id)
	a.stop()
	a.start()
	ann.at(a.url+"/one").taskIs(t, id, taskAsks)
}

func TestTasksBelongToTheirServerAndTheirCaller(t *testing.T) {
	t.Parallel()
	servers := map[string]*script{"one": newTasker("one").serve(t), "two": newTasker("two").serve(t)}
	s, _ := fileSidecar(t, nil, httpUpstream("one", servers["one"].url), httpUpstream("two", servers["two"].url),
		federation("all", "/all", "", "one", "two"), federation("alone", "/alone", ", names: {prefix: always}", "one"))
	ann := newAsker(t, s.url+"/all", "ann").declaring(declaresTasks)
	if r := ann.asks(t, "server/discover", "", ""); !strings.Contains(r.raw, tasksExtension) {
		t.Errorf("discover answered %v, want %s offered", r, tasksExtension)
	}
	ids := map[string]string{}
	for name := range servers {
		ids[name] = ann.makes(t, name+"_make")
		ann.taskIs(t, ids[name], taskAsks)
	}
	for name, server := range servers {
		ann.at(s.url+"/alone").hasNoTask(t, ids[name]) // another endpoint, and one of the servers the same
		newAsker(t, s.url+"/all", "bob").declaring(declaresTasks).hasNoTask(t, ids[name])
		newAsker(t, s.url+"/all", "").declaring(declaresTasks).hasNoTask(t, ids[name])
		if n := server.heardOf(`"tasks/get"`) + server.heardOf(`"tasks/update"`) + server.heardOf(`"tasks/cancel"`); n != 1 {
			t.Errorf("%s was asked %d times about its task, want once, by who has it", name, n)
		}
	}
	ann.hasNoTask(t, "t/1") // which is the servers' own name for it
	if r := ann.declaring(askable).asks(t, "tasks/get", ids["one"], fmt.Sprintf(`"taskId":%q`, ids["one"])); r.Error == nil || r.Error.Code != -32021 {
		t.Errorf("without the extension: %v, want -32021", r)
	}

	ann.tells(t, "tasks/update", ids["one"], `,"inputResponses":`+taskAnswered)
	ann.taskIs(t, ids["one"], taskDone("one"))
	ann.taskIs(t, ids["two"], taskAsks) // nothing of that concerns the other's
	ann.tells(t, "tasks/cancel", ids["two"], "")
	ann.taskIs(t, ids["two"], `"status":"cancelled"`)
	ann.taskIs(t, ids["one"], taskDone("one"))
	if servers["one"].heardOf(`"tasks/update"`, `"inputResponses":`+taskAnswered) != 1 {
		t.Error("the answer to the task's question is not as the client wrote it")
	}

	alone := ann.at(s.url + "/alone")
	id := alone.makes(t, "one_make")
	alone.taskIs(t, id, taskDone("one"))
	newAsker(t, s.url+"/alone", "bob").declaring(declaresTasks).hasNoTask(t, id)
}

// hasNoTask checks that a task is unknown to a client, whatever it asks about it.
func (a *asker) hasNoTask(t *testing.T, id string) {
	t.Helper()
	for _, method := range []string{"tasks/get", "tasks/update", "tasks/cancel"} {
		r := a.asks(t, method, id, fmt.Sprintf(`"taskId":%q,"inputResponses":{}`, id))
		if r.Error == nil || r.Error.Code != -32602 || r.Error.Message != "unknown task" {
			t.Errorf("%s of another's task by %q at %s: %v, want that it is unknown", method, a.token, a.url, r)
		}
	}
}

// The tasks of 2025-11-25 and the extension have a name in common, and nothing else.
func TestTheTwoKindsOfTasksAreNeverMixed(t *testing.T) {
	t.Parallel()
	modern := newTasker("modern").serve(t)
	old := (&script{
		version:      versionLegacy,
		capabilities: `{"tools":{},"tasks":{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}}`,
		answers: map[string]func(*scripted) string{
			"ping":       always(`"result":{}`),
			"tools/list": always(`"result":{"tools":[{"name":"make","inputSchema":{"type":"object"},"execution":{"taskSupport":"optional"}}]}`),
			"tools/call": always(`"result":{"content":[{"type":"text","text":"made at once"}]}`),
			"tasks/get":  always(`"result":{"taskId":"t/1","status":"working"}`),
		},
	}).serve(t)
	s, _ := fileSidecar(t, nil, httpUpstream("modern", modern.url), httpUpstream("old", old.url),
		binding("modern", "/modern", "modern", ""), binding("old", "/old", "old", ""),
		federation("all", "/all", ", names: {prefix: never}", "modern"), federation("both", "/both", "", "old", "modern"))
	s.serves()

	for path, tool := range map[string]string{"/modern": "make", "/all": "make", "/both": "modern_make"} {
		w := newWire(t, s.url+path, versionLegacy)
		w.able = fmt.Sprintf(`{"tasks":{"requests":{"tools":{"call":{}}}},"extensions":{%q:{}}}`, tasksExtension)
		params := fmt.Sprintf(`"protocolVersion":%q,"capabilities":%s,"clientInfo":{"name":"e2e","version":"1"}`, versionLegacy, w.able)
		if got := w.raw(t, "initialize", "", params); !strings.Contains(got, `"result"`) || strings.Contains(got, "tasks") {
			t.Errorf("%s: initialize answered %s, want no word of tasks", path, got)
		}
		if err := w.initialize(within(t)); err != nil {
			t.Fatal(err)
		}
		got := w.raw(t, "tools/call", tool, fmt.Sprintf(`"name":%q,"arguments":{},"task":{"ttl":60000}`, tool))
		if !strings.Contains(got, "made at once") || strings.Contains(got, "taskId") {
			t.Errorf("%s: a call as a task answered %s, want the tool's result", path, got)
		}
		for _, method := range []string{"tasks/get", "tasks/result", "tasks/cancel", "tasks/list", "tasks/update"} {
			if got := w.raw(t, method, "", `"taskId":"t/1"`); !strings.Contains(got, "-32601") {
				t.Errorf("%s: %s answered %s, want -32601", path, method, got)
			}
		}
	}
	if n := modern.heardOf(`"task":`) + modern.heardOf(`"tools/call"`, tasksExtension) + modern.heardOf(`"tasks/`); n != 0 {
		t.Errorf("a server of the extension heard %d times of a session's tasks", n)
	}

	for path, prefix := range map[string]string{"/old": "", "/both": "old_"} {
		ann := newAsker(t, s.url+path, "ann").declaring(declaresTasks)
		if r := ann.asks(t, "server/discover", "", ""); path == "/old" && strings.Contains(r.raw, "tasks") {
			t.Errorf("%s: discover answered %v, want no word of tasks", path, r)
		}
		if r := ann.asks(t, "tools/list", "", ""); strings.Contains(r.raw, "taskSupport") || !strings.Contains(r.raw, prefix+"make") {
			t.Errorf("%s: tools/list answered %v, want the tool without its tasks", path, r)
		}
		r := ann.asks(t, "tools/call", prefix+"make", fmt.Sprintf(`"name":%q,"arguments":{},"task":{"ttl":60000}`, prefix+"make"))
		if r.text() != "made at once" {
			t.Errorf("%s: the call answered %v, want the tool's result", path, r)
		}
		if r := ann.asks(t, "tasks/get", "t/1", `"taskId":"t/1"`); r.Error == nil {
			t.Errorf("%s: tasks/get answered %v, want an error", path, r)
		}
	}
	if n := old.heardOf(`"task":`) + old.heardOf(tasksExtension) + old.heardOf(`"tasks/`); n != 0 {
		t.Errorf("a server of sessions heard %d times of the extension's tasks", n)
	}
}
