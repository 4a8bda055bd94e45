package resource

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// full sets every field there is.
const full = `
# everything
kind: Upstream
name: weather
labels: {team: sky}
spec:
  http:
    url: https://weather.example:8443/mcp
    unixSocket: /run/weather.sock
    ca_file: /etc/ca.pem
    maxIdleConnections: 7
  bridge: {enabled: false, maxSessions: 3, sessionIdle: 1m, maxHeldCalls: 4, heldTimeout: 2m, maxRounds: 5}
  concurrency: {maxCalls: 8, maxWaiting: 9, maxWait: 1s}
  health: {failures: 2, retryAfter: 3s, interval: -1s}
  retry: {attempts: 1, budgetPercent: 10}
  era: stateless
  timeouts: {connect: 1s, handshake: 2.5s, call: 1m30s}
  credential: {header: X-Key, prefix: "Bearer ", env: OUTRIGGER_CREDENTIAL_WEATHER}
---
kind: Upstream
name: files
spec:
  stdio:
    command: [npx, server-filesystem, /srv]
    env: {DEBUG: "1"}
    workingDirectory: /srv
    isolation: session
    stopGrace: 500ms
    maxMessageBytes: 1048576
---
kind: Upstream
name: many
spec:
  http: {url: "http://a:1/mcp", moreUrls: ["http://b:1/mcp"]}
---
kind: Upstream
name: old
spec:
  sse: {url: "https://old.example/sse", caFile: /etc/ca.pem}
---
kind: Binding
name: demo
revision: 12
status: {running: 3}
spec:
  selector: {matchLabels: {app: weather}}
  path: /weather
  upstreams: [{name: weather, prefix: sky}]
  names: {prefix: on_conflict, maxLength: 40, anyCharacters: true}
  lists: {pageSize: 10, maxPages: 20, timeout: 1s, ttl: 2s, stale: 3s}
  partialFailure: refuse
  hosts: [weather.example, 127.0.0.1, "[::1]"]
  origins: ["https://app.example", "http://localhost:6274"]
  limits: {maxBodyBytes: 1000, maxDepth: 9, readTimeout: 3s}
  session: {idleTimeout: 1h, maxSessions: 5, replayBytes: 100}
  accessLog: false
  keepAlive: 20s
`

func mustLoad(t *testing.T, text string) []Object {
	t.Helper()
	objs, errs := Load("test.yaml", []byte(text))
	if len(errs) > 0 {
		t.Fatalf("Load of a good text: %v\n%s", errs, text)
	}
	return objs
}

func TestAFullDocumentIsReadCompletely(t *testing.T) {
	objs := mustLoad(t, full)
	if len(objs) != 5 {
		t.Fatalf("%d objects, want 5", len(objs))
	}
	b := objs[4].(*outriggerv1.Binding)
	if b.Path != "/weather" || b.KeepAlive.Seconds != 20 || b.AccessLog == nil || *b.AccessLog || b.Selector.MatchLabels["app"] != "weather" {
		t.Errorf("binding: %v", b)
	}
	if u := objs[0].(*outriggerv1.Upstream); u.GetHttp().CaFile != "/etc/ca.pem" || u.Era != outriggerv1.Era_ERA_STATELESS {
		t.Errorf("upstream: %v", u)
	}
}

func TestWhatIsAcceptedRoundTrips(t *testing.T) {
	for _, o := range mustLoad(t, full) {
		roundTrip(t, o)
		roundTrip(t, WithDefaults(o))
	}
}

// roundTrip holds that an Object means the same after Encode and Decode.
func roundTrip(t *testing.T, o Object) {
	t.Helper()
	spec := Encode(o)
	again, errs := Decode(&outriggerv1.Resource{Kind: KindOf(o), Name: o.GetName(), Spec: spec})
	if len(errs) > 0 || !proto.Equal(o, again) {
		t.Errorf("after Encode and Decode (%v)\n got %v\nwant %v\nspec %v", errs, again, o, spec)
	}
}

func TestEveryMistakeIsReportedUnderItsPath(t *testing.T) {
	rows := []struct{ name, text, want string }{
		{"unknown kind", "kind: Upstraem\nname: a", `t: Upstraem/a: kind: unknown kind "Upstraem", expected Secret, Upstream, Binding, Tenant, Key or Policy, did you mean "Upstream"?`},
		{"no kind", "name: a", "t: resources[0]: kind: required, expected Secret, Upstream, Binding, Tenant, Key or Policy"},
		{"no name", "kind: Upstream", "t: resources[0]: name: required"},
		{"number as name", "kind: Upstream\nname: 7", "t: resources[0]: name: expected a string, got 7"},
		{"not a mapping", "- kind: Upstream\n  name: a\n- 7", "t: resources[1]: expected a resource with kind, name and spec, got 7"},
		{"unknown field beside spec", "kind: Upstream\nname: a\nspek: {}", `t: Upstream/a: spek: unknown field, did you mean "spec"?`},
		{"duplicate key", "kind: Upstream\nkind: Binding", `t: line 2: key "kind" is given twice`},
		{"duplicate key in JSON", `{"kind":"Upstream","name":"a","name":"b"}`, `t: key "name" is given twice`},
		{"merge key", "a: &a {b: 1}\nc:\n  <<: *a", "t: line 3: merge keys (<<) are not supported"},
		{"tag", "kind: !!binary aGk=", "t: line 1: tag !!binary is not supported"},
		{"alias within itself", "kind: &a [*a]", "t: line 1: nested deeper than 100"},
		{"syntax", "kind: [", "t: line 1: did not find expected node content"},
		{"infinity", "kind: .inf", "t: line 1: .inf is not a finite number"},
		{"list without items", "kind: List\nitmes: []", "t: itmes: unknown field of a List, expected kind and items\nt: items: expected a list of resources, got nothing"},
		{"label", "kind: Upstream\nname: a\nlabels: {a: 1}", "t: Upstream/a: labels.a: expected a string, got 1 (put it in quotes)"},
		{"revision", "kind: Upstream\nname: a\nrevision: -1", "t: Upstream/a: revision: expected a whole number from 0, got -1"},
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			if _, errs := Load("t", []byte(r.text)); !strings.Contains(errs.Error()+"\n", r.want+"\n") {
				t.Errorf("%s\n got %s\nwant %s", r.text, errs.Error(), r.want)
			}
		})
	}
}

// upstream and binding make a document around a spec.
func upstreamDoc(spec string) string { return "kind: Upstream\nname: a\nspec: " + spec }
func bindingDoc(fields string) string {
	return upstreamDoc("{http: {url: 'http://h/mcp'}}") + "\n---\nkind: Binding\nname: demo\nspec: {" + fields + "}"
}

func TestMistakesInSpecs(t *testing.T) {
	rows := []struct{ text, want string }{
		// Form.
		{upstreamDoc("{htpp: {url: 'http://h'}}"), `Upstream/a: spec.htpp: unknown field, did you mean "http"?`},
		{upstreamDoc("{zzzzzzz: 1}"), `Upstream/a: spec.zzzzzzz: unknown field, expected http, stdio, sse, era, timeouts, credential, bridge, concurrency, health or retry`},
		{upstreamDoc("{http: 7}"), `Upstream/a: spec.http: expected a mapping, got 7`},
		{upstreamDoc("{name: b}"), `Upstream/a: spec.name: a resource's name stands beside its spec, not in it`},
		{upstreamDoc("{http: {url: 'http://h'}, stdio: {command: [x]}}"), `Upstream/a: spec.stdio: http is set already, expected only one of http, stdio, sse`},
		{upstreamDoc("{http: {url: 'http://h', caFile: a, ca_file: b}}"), `Upstream/a: spec.http.ca_file: the same field as caFile`},
		{upstreamDoc("{era: modern}"), `Upstream/a: spec.era: expected auto, legacy or stateless, got "modern"`},
		{upstreamDoc("{timeouts: {call: 30}}"), `Upstream/a: spec.timeouts.call: expected a duration such as "30s" or "1m30s", got 30`},
		{upstreamDoc("{timeouts: {call: 1 hour}}"), `Upstream/a: spec.timeouts.call: expected a duration such as "30s" or "1m30s", got "1 hour"`},
		{upstreamDoc("{stdio: {command: [x, 1]}}"), `Upstream/a: spec.stdio.command[1]: expected a string (put it in quotes), got 1`},
		{upstreamDoc("{stdio: {command: x}}"), `Upstream/a: spec.stdio.command: expected a list, got "x"`},
		{upstreamDoc("{stdio: {command: [x], env: {A: true}}}"), `Upstream/a: spec.stdio.env.A: expected a string, got true (put it in quotes)`},
		{upstreamDoc("{http: {url: 'http://h', maxIdleConnections: -1}}"), `Upstream/a: spec.http.maxIdleConnections: expected a whole number from 0 to 4294967295, got -1`},
		{upstreamDoc("{stdio: {command: [x], maxMessageBytes: 1.5}}"), `Upstream/a: spec.stdio.maxMessageBytes: expected a whole number from 0 (in quotes above 2^53), got 1.5`},
		{bindingDoc("accessLog: sometimes"), `Binding/demo: spec.accessLog: expected true or false, got "sometimes"`},
		// Meaning, upstreams.
		{upstreamDoc("{}"), `Upstream/a: spec: no transport, expected exactly one of http, stdio and sse`},
		{upstreamDoc("{http: {url: 'ftp://x'}}"), `Upstream/a: spec.http.url: "ftp://x" is not an absolute http(s) URL`},
		{upstreamDoc("{http: {url: 'http:///x'}}"), `Upstream/a: spec.http.url: "http:///x" is not an absolute http(s) URL`},
		{upstreamDoc("{http: {url: 'http://u:p@h/x'}}"), `Upstream/a: spec.http.url: must not carry a user or password, expected a credential`},
		{upstreamDoc("{http: {}}"), `Upstream/a: spec.http.url: required, such as "http://127.0.0.1:3000/mcp"`},
		{upstreamDoc("{http: {url: 'http://h', unixSocket: a.sock}}"), `Upstream/a: spec.http.unixSocket: "a.sock" is not an absolute path`},
		{upstreamDoc("{http: {url: 'http://h', caFile: /a.pem}}"), `Upstream/a: spec.http.caFile: of no use with an http URL, expected https`},
		{upstreamDoc("{stdio: {}}"), `Upstream/a: spec.stdio.command: required: the program and its arguments, such as ["server", "--verbose"]`},
		{upstreamDoc("{stdio: {command: [x], env: {A-B: x}}}"), `Upstream/a: spec.stdio.env.A-B: "A-B" is not the name of an environment variable`},
		{upstreamDoc("{timeouts: {call: -1s}}"), `Upstream/a: spec.timeouts.call: -1s is negative, expected at least 0`},
		{upstreamDoc("{sse: {url: 'http://h', caFile: /a.pem}}"), `Upstream/a: spec.sse.caFile: of no use with an http URL, expected https`},
		{upstreamDoc("{sse: {url: 'http://h'}, era: stateless}"), `Upstream/a: spec.era: stateless is not spoken over sse, expected legacy or auto`},
		{upstreamDoc("{http: {url: 'http://h', unixSocket: /a, moreUrls: ['http://i']}}"), `Upstream/a: spec.http.moreUrls: of no use with unixSocket, which is dialed for every URL`},
		{upstreamDoc("{http: {url: 'http://h', moreUrls: ['i']}}"), `Upstream/a: spec.http.moreUrls[0]: "i" is not an absolute http(s) URL`},
		{upstreamDoc("{health: {interval: 1ms}}"), `Upstream/a: spec.health.interval: 1ms, expected at least 1s`},
		{upstreamDoc("{retry: {attempts: 6}}"), `Upstream/a: spec.retry.attempts: 6, expected 1 to 5`},
		{upstreamDoc("{timeouts: {call: 25h}}"), `Upstream/a: spec.timeouts.call: 25h0m0s, expected at most 24h`},
		{upstreamDoc("{credential: {}}"), `Upstream/a: spec.credential: no source, expected exactly one of env, file, secret, clientCredentials and tokenExchange`},
		{upstreamDoc("{credential: {env: HOME}}"), `Upstream/a: spec.credential.env: "HOME", expected a variable whose name begins with OUTRIGGER_CREDENTIAL_`},
		{upstreamDoc("{credential: {file: ../x}}"), `Upstream/a: spec.credential.file: "../x", expected the bare name of a file in the credentials directory`},
		{upstreamDoc("{credential: {file: x, header: Mcp-Session-Id}}"), `Upstream/a: spec.credential.header: "Mcp-Session-Id" is not a header that a credential may set`},
		{upstreamDoc("{credential: {file: x, header: 'a b'}}"), `Upstream/a: spec.credential.header: "a b" is not a header's name`},
		// Meaning, bindings.
		{bindingDoc("selector: {}"), `Binding/demo: spec.upstreams: 0 given, expected 1 to 64`},
		{bindingDoc("selector: {}, upstreams: [" + strings.Repeat("{name: a},", 64) + "{name: a}]"), `Binding/demo: spec.upstreams: 65 given, expected 1 to 64`},
		{bindingDoc("selector: {}, upstreams: [{name: a}, {name: a}]"), `Binding/demo: spec.upstreams[1].name: "a" is already spec.upstreams[0]`},
		{bindingDoc("upstreams: [{name: a}]"), `Binding/demo: spec.selector: required: which sidecars, {} for all of them`},
		{bindingDoc("selector: {}, upstreams: [{name: b}]"), `Binding/demo: spec.upstreams[0].name: no Upstream is named "b", did you mean "a"?`},
		{bindingDoc("path: mcp"), `Binding/demo: spec.path: "mcp", expected a path that begins with '/'`},
		{bindingDoc("path: /a/"), `Binding/demo: spec.path: "/a/" is not in its shortest form, expected "/a"`},
		{bindingDoc("path: '/a?b=1'"), `Binding/demo: spec.path: "/a?b=1", expected only letters, digits and . _ ~ - / (no query, no escapes)`},
		{bindingDoc("path: /.well-known/x"), `Binding/demo: spec.path: "/.well-known/x" is reserved, expected a path that is not under /.well-known or /.outrigger`},
		{bindingDoc("hosts: ['a.example:80']"), `Binding/demo: spec.hosts[0]: "a.example:80" is not a host without port, such as app.example, 10.0.0.1 or [::1]`},
		{bindingDoc("origins: ['https://a.example/']"), `Binding/demo: spec.origins[0]: "https://a.example/" is not an origin, such as https://app.example or http://localhost:6274`},
		{bindingDoc("origins: ['https://a.example:443']"), `Binding/demo: spec.origins[0]: "https://a.example:443" is not an origin, such as https://app.example or http://localhost:6274`},
		{bindingDoc("limits: {maxBodyBytes: 1073741825}"), `Binding/demo: spec.limits.maxBodyBytes: 1073741825 bytes, expected at most 1073741824 (1 GiB)`},
		{bindingDoc("names: {maxLength: 31}"), `Binding/demo: spec.names.maxLength: 31, expected 32 to 128`},
		{bindingDoc("partialFailure: maybe"), `Binding/demo: spec.partialFailure: expected serve or refuse, got "maybe"`},
		{bindingDoc("limits: {maxDepth: 10001}"), `Binding/demo: spec.limits.maxDepth: 10001, expected at most 10000`},
		{bindingDoc("selector: {matchLabels: {'a b': c}}"), `Binding/demo: spec.selector.matchLabels.a b: "a b" is not a label's key: expected 1 to 63 of letters, digits and . _ / -`},
		{"kind: Upstream\nname: A", `Upstream/A: name: "A" is not a name: expected at most 63 lower-case letters, digits, '-' and '.', each part beginning and ending with a letter or digit`},
	}
	for _, r := range rows {
		if _, errs := Load("t", []byte(r.text)); !strings.Contains("\n"+errs.Error()+"\n", "\nt: "+r.want+"\n") {
			t.Errorf("%s\n got %s\nwant t: %s", r.text, errs.Error(), r.want)
		}
	}
}

func TestManyMistakesAreReportedAtOnce(t *testing.T) {
	text := upstreamDoc("{http: {url: 'ftp://x', unixSocket: s}, timeouts: {call: -1s}}") + "\n---\n" +
		"kind: Binding\nname: b\nspec: {path: x}\n---\nkind: Binding\nname: b\nspec: {pth: x}"
	_, errs := Load("t", []byte(text))
	if len(errs) != 10 {
		t.Errorf("%d mistakes, want 10:\n%s", len(errs), errs.Error())
	}
}

func TestAMistakeOfFormHidesNoOther(t *testing.T) {
	const noName = `is not a name: expected at most 63 lower-case letters, digits, '-' and '.', each part beginning and ending with a letter or digit`
	rows := []struct {
		name, text string
		want       []string
	}{
		{"in one resource", "kind: Upstream\nname: A\nspec: {zzzzzzz: 1, http: {url: 'ftp://x'}, timeouts: {call: 30, connect: 25h}}", []string{
			`t: Upstream/A: spec.timeouts.call: expected a duration such as "30s" or "1m30s", got 30`,
			`t: Upstream/A: spec.zzzzzzz: unknown field, expected http, stdio, sse, era, timeouts, credential, bridge, concurrency, health or retry`,
			`t: Upstream/A: name: "A" ` + noName,
			`t: Upstream/A: spec.http.url: "ftp://x" is not an absolute http(s) URL`,
			`t: Upstream/A: spec.timeouts.connect: 25h0m0s, expected at most 24h`,
		}},
		{"beside the spec", "kind: Upstream\nname: a\nspek: {}\nspec: {http: {url: 'ftp://x'}}", []string{
			`t: Upstream/a: spek: unknown field, did you mean "spec"?`,
			`t: Upstream/a: spec.http.url: "ftp://x" is not an absolute http(s) URL`,
		}},
		{"without a name", "kind: Upstream\nspec: {http: {url: 'ftp://x'}, zzzzzzz: 1}", []string{
			`t: resources[0]: name: required`,
			`t: resources[0]: spec.zzzzzzz: unknown field, expected http, stdio, sse, era, timeouts, credential, bridge, concurrency, health or retry`,
			`t: resources[0]: spec.http.url: "ftp://x" is not an absolute http(s) URL`,
		}},
		{"of an unknown kind", "kind: Gadget\nname: A\nlabels: {'a b': c}", []string{
			`t: Gadget/A: kind: unknown kind "Gadget", expected Secret, Upstream, Binding, Tenant, Key or Policy`,
			`t: Gadget/A: name: "A" ` + noName,
			`t: Gadget/A: labels.a b: "a b" is not a label's key: expected 1 to 63 of letters, digits and . _ / -`,
		}},
		{"to what is elsewhere", "kind: Binding\nname: b\nspec: {selector: {}, zzzzzzz: 1, upstreams: [{name: gone}]}", []string{
			`t: Binding/b: spec.zzzzzzz: unknown field, expected selector, path, upstreams, hosts, origins, limits, session, accessLog, keepAlive, names, lists, partialFailure or externalUrl`,
			`t: Binding/b: spec.upstreams[0].name: no Upstream is named "gone"`,
		}},
		{"in a list", bindingDoc("selector: {}, upstreams: [{name: a}], hosts: [7, 'a:80']"), []string{
			`t: Binding/demo: spec.hosts[0]: expected a string (put it in quotes), got 7`,
			`t: Binding/demo: spec.hosts[1]: "a:80" is not a host without port, such as app.example, 10.0.0.1 or [::1]`,
		}},
		// What follows from a mistake is not another one.
		{"a misspelt transport", upstreamDoc("{htpp: {url: 'http://h'}}"), []string{`t: Upstream/a: spec.htpp: unknown field, did you mean "http"?`}},
		{"a transport of another type", upstreamDoc("{http: 7}"), []string{`t: Upstream/a: spec.http: expected a mapping, got 7`}},
		{"a misspelt URL", upstreamDoc("{http: {ulr: 'http://h'}}"), []string{`t: Upstream/a: spec.http.ulr: unknown field, did you mean "url"?`}},
		{"a list of the wrong type", bindingDoc("selector: {}, upstreams: a"), []string{`t: Binding/demo: spec.upstreams: expected a list, got "a"`}},
		{"an entry of the wrong type", bindingDoc("selector: {}, upstreams: [a]"), []string{`t: Binding/demo: spec.upstreams[0]: expected a mapping, got "a"`}},
		{"two at one path, one misread", bindingDoc("selector: {}, upstreams: [{name: a}]") + "\n---\nkind: Binding\nname: b\nspec: {selector: {}, upstreams: [{name: a}], path: 7}", []string{
			`t: Binding/b: spec.path: expected a string (put it in quotes), got 7`,
		}},
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			if _, errs := Load("t", []byte(r.text)); errs.Error() != strings.Join(r.want, "\n") {
				t.Errorf("%s\n got %s\nwant %s", r.text, errs.Error(), strings.Join(r.want, "\n"))
			}
		})
	}
}

func TestAMistakeIsNotReportedAgainWhereItIsReferredTo(t *testing.T) {
	text := upstreamDoc("{era: modern, http: {url: 'http://h'}}") + "\n---\nkind: Binding\nname: b\nspec: {selector: {}, upstreams: [{name: a}]}"
	if _, errs := Load("t", []byte(text)); len(errs) != 1 {
		t.Errorf("got %v, want the one about era", errs)
	}
}

func TestAnAliasBombIsRefused(t *testing.T) {
	text := "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	for i := 1; i < 12; i++ {
		text += fmt.Sprintf("a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 10), ", "))
	}
	if _, errs := Parse("t", []byte(text)); !strings.Contains(errs.Error(), "more than 500000 values") {
		t.Errorf("got %s", errs.Error())
	}
}

func TestALargeIntegerKeepsItsDigits(t *testing.T) {
	for _, form := range []string{"18446744073709551615", `"18446744073709551615"`} {
		for _, text := range []string{
			"kind: Upstream\nname: a\nspec: {stdio: {command: [x], maxMessageBytes: " + form + "}}",
			`{"kind":"Upstream","name":"a","spec":{"stdio":{"command":["x"],"maxMessageBytes":` + form + `}}}`,
		} {
			resources, errs := Parse("t", []byte(text))
			if len(errs) > 0 {
				t.Fatalf("%s: %v", text, errs)
			}
			o, errs := Decode(resources[0])
			if len(errs) > 0 || o.(*outriggerv1.Upstream).GetStdio().MaxMessageBytes != 18446744073709551615 {
				t.Errorf("%s: got %v, %v", text, o, errs)
			}
		}
	}
}

func TestJSONIsReadAsJSON(t *testing.T) {
	o := mustLoad(t, `{"kind":"List","items":[{"kind":"Upstream","name":"a","spec":{"stdio":{"command":["\ud83d\ude00\/"]}}}]}`)
	if got := o[0].(*outriggerv1.Upstream).GetStdio().Command[0]; got != "😀/" {
		t.Errorf("got %q", got)
	}
}

func TestPathsCollideUnlessSelectorsContradict(t *testing.T) {
	const collision = `Binding/b: spec.path: "/mcp" is also the path of Binding/a, and a sidecar may match both selectors`
	sel := func(kv ...string) *outriggerv1.Selector {
		s := &outriggerv1.Selector{MatchLabels: map[string]string{}}
		for i := 0; i < len(kv); i += 2 {
			s.MatchLabels[kv[i]] = kv[i+1]
		}
		return s
	}
	rows := []struct {
		a, b *outriggerv1.Selector
		want string
	}{
		{sel(), sel(), collision},
		{sel(), sel("app", "x"), collision},
		{sel("app", "x"), sel("tier", "y"), collision},
		{sel("app", "x"), sel("app", "y"), ""},
		{sel("app", "x", "tier", "1"), sel("app", "x", "tier", "2"), ""},
		{nil, sel(), ""},
	}
	u := &outriggerv1.Upstream{Name: "u"}
	for _, r := range rows {
		ref := []*outriggerv1.UpstreamReference{{Name: "u"}}
		a := &outriggerv1.Binding{Name: "a", Path: "/mcp", Selector: r.a, Upstreams: ref}
		b := &outriggerv1.Binding{Name: "b", Selector: r.b, Upstreams: ref}
		if got := ValidateSet([]Object{u, a, b}).Error(); got != r.want {
			t.Errorf("selectors %v and %v\n got %q\nwant %q", r.a, r.b, got, r.want)
		}
	}
}

func TestNamesAreUniqueWithinAKind(t *testing.T) {
	u, b := &outriggerv1.Upstream{Name: "x"}, &outriggerv1.Binding{Name: "x"}
	if errs := ValidateSet([]Object{u, b}); len(errs) > 0 {
		t.Errorf("one name in two kinds: %v", errs)
	}
	if got := ValidateSet([]Object{u, u}).Error(); got != "Upstream/x: name: Upstream/x is given twice" {
		t.Errorf("one name twice: %q", got)
	}
}

func TestPrefixesThatCanGiveOneNameAreRefused(t *testing.T) {
	for _, r := range []struct {
		a, b string
		ok   bool
	}{
		{"a", "b", true}, {"a", "ab", true}, {"", "", true}, {"a", "", true},
		{"a", "a", false}, {"a", "a_b", false}, {"a_b", "a", false}, {"a_", "b", false}, {"x y", "b", false},
	} {
		b := &outriggerv1.Binding{Name: "b", Selector: &outriggerv1.Selector{}, Upstreams: []*outriggerv1.UpstreamReference{
			{Name: "one", Prefix: r.a}, {Name: "two", Prefix: r.b},
		}}
		var v validator
		v.federation(b)
		if got := len(v.errs) == 0; got != r.ok {
			t.Errorf("prefixes %q and %q: %v, want accepted: %v", r.a, r.b, v.errs, r.ok)
		}
	}
}

func TestASelectorNeedsEveryLabel(t *testing.T) {
	labels := map[string]string{"app": "x", "tier": "1"}
	rows := []struct {
		match map[string]string
		want  bool
	}{
		{nil, true},
		{map[string]string{"app": "x"}, true},
		{map[string]string{"app": "x", "tier": "1"}, true},
		{map[string]string{"app": "x", "zone": ""}, false},
		{map[string]string{"app": "y"}, false},
	}
	for _, r := range rows {
		if got := Matches(&outriggerv1.Selector{MatchLabels: r.match}, labels); got != r.want {
			t.Errorf("%v on %v: got %v, want %v", r.match, labels, got, r.want)
		}
	}
	if Matches(nil, labels) {
		t.Error("a missing selector matches")
	}
}

func TestDefaultsFillOnlyWhatIsLeftOut(t *testing.T) {
	u := &outriggerv1.Upstream{Name: "a", Timeouts: &outriggerv1.Timeouts{}}
	got := WithDefaults(u)
	if got.Timeouts.Call.AsDuration().String() != "15m0s" || got.Era != outriggerv1.Era_ERA_AUTO || got.Credential != nil {
		t.Errorf("defaults: %v", got)
	}
	if u.Timeouts.Call != nil {
		t.Error("the original was changed")
	}
	for _, o := range mustLoad(t, full) {
		isFull := o.GetName() == "weather" || o.GetName() == "demo"
		if got := WithDefaults(o); isFull && !proto.Equal(got, o) {
			t.Errorf("a full object was changed\n got %v\nwant %v", got, o)
		}
	}
}

// TestEveryFieldCanBeDecoded holds that the decoder knows every type of field that a kind has, also one added later.
func TestEveryFieldCanBeDecoded(t *testing.T) {
	var walk func(m protoreflect.MessageDescriptor)
	walk = func(m protoreflect.MessageDescriptor) {
		for i := range m.Fields().Len() {
			fd := m.Fields().Get(i)
			switch fd.Kind() {
			case protoreflect.StringKind, protoreflect.BoolKind, protoreflect.EnumKind, protoreflect.Uint32Kind, protoreflect.Uint64Kind:
			case protoreflect.MessageKind:
				if fd.IsMap() {
					if fd.MapKey().Kind() != protoreflect.StringKind || fd.MapValue().Kind() != protoreflect.StringKind {
						t.Errorf("%s is a map of another kind than strings", fd.FullName())
					}
				} else if name := fd.Message().FullName(); name != durationName && name != timestampName {
					walk(fd.Message())
				}
			default:
				t.Errorf("%s is of kind %s", fd.FullName(), fd.Kind())
			}
		}
	}
	for _, kind := range Kinds() {
		o, _ := New(kind)
		walk(o.ProtoReflect().Descriptor())
		if KindOf(o) != kind {
			t.Errorf("KindOf a new %s is %s", kind, KindOf(o))
		}
		if got, ok := KindOfTypeURL(TypeURL(kind)); !ok || got != kind {
			t.Errorf("type URL of %s leads to %q", kind, got)
		}
	}
	if _, ok := KindOfTypeURL(ManifestTypeURL); ok {
		t.Error("the manifest is a kind")
	}
}

func FuzzLoad(f *testing.F) {
	f.Add(full)
	f.Add(fullPolicy)
	f.Add(`{"kind":"List","items":[{"kind":"Upstream","name":"a","spec":{"http":{"url":"http://h/mcp"}}}]}`)
	f.Add("kind: Upstream\nname: a\nspec: &x {http: {url: 'http://h'}, era: ERA_LEGACY, timeouts: {call: 0.001s}}")
	f.Fuzz(func(t *testing.T, text string) {
		resources, _ := Parse("f", []byte(text))
		_, mistakes := Load("f", []byte(text))
		seen := map[Error]bool{}
		for _, m := range mistakes {
			if seen[m] && strings.Count(text, "kind") < 2 { // two of one name may have the same mistakes
				t.Errorf("reported twice: %v\n%s", m, text)
			}
			seen[m] = true
		}
		for _, r := range resources {
			if o, errs := Decode(r); len(errs) == 0 && len(Validate(o)) == 0 {
				roundTrip(t, o)
				if errs := Validate(WithDefaults(o)); len(errs) > 0 {
					t.Errorf("defaults make %v invalid: %v", o, errs)
				}
			}
		}
	})
}

// TestTheSelectorIndexFindsWhatComparingEachWithEachFinds holds the index to its meaning over random selectors.
func TestTheSelectorIndexFindsWhatComparingEachWithEachFinds(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		var objs []Object
		var bindings []*outriggerv1.Binding
		want := 0
		for i := range 1 + random.IntN(6) {
			labels := map[string]string{}
			for _, key := range []string{"app", "env", "zone"} {
				if random.IntN(2) == 0 {
					labels[key] = string(rune('a' + random.IntN(2)))
				}
			}
			b := &outriggerv1.Binding{Name: fmt.Sprintf("b%d", i), Selector: &outriggerv1.Selector{MatchLabels: labels}}
			if firstSharing(b, bindings) != nil {
				want++
			}
			bindings = append(bindings, b)
			objs = append(objs, b)
		}
		if got := ValidateSet(objs); len(got) != want {
			t.Fatalf("%d collisions found, comparing each with each finds %d, in %v\n%v", len(got), want, bindings, got)
		}
	}
}

// BenchmarkValidateSet checks a fleet in which every server has a binding at the same path.
func BenchmarkValidateSet(b *testing.B) {
	var objs []Object
	for i := range 10_000 {
		name := fmt.Sprintf("s%d", i)
		objs = append(objs, &outriggerv1.Upstream{Name: name}, &outriggerv1.Binding{
			Name: name, Upstreams: []*outriggerv1.UpstreamReference{{Name: name}},
			Selector: &outriggerv1.Selector{MatchLabels: map[string]string{"app": name}},
		})
	}
	b.ReportAllocs()
	for b.Loop() {
		if errs := ValidateSet(objs); errs != nil {
			b.Fatal(errs)
		}
	}
}
