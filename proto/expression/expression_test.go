package expression

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

func TestExpressionsThatCanBeUsed(t *testing.T) {
	for _, text := range []string{
		`principal.id == "a|b"`,
		`"admins" in principal.groups && "tools:write" in principal.scopes`,
		`principal.claims.department == "ops"`,
		`has(principal.claims.org) && principal.claims.org.level > 3`,
		`principal.keyLabels["team"] == tenant`,
		`principal.spiffeId.startsWith("spiffe://example.org/") || principal.provider == "corp"`,
		`has(principal.key)`,
		`method == "tools/call" && tool.name.endsWith("_read") && tool.readOnly && !tool.destructive`,
		`tool.idempotent || tool.openWorld`,
		`prompt.name == "review" || resource.uri.startsWith("file:///public/")`,
		`binding == "b" && upstream != "u"`,
		`time < timestamp("2027-01-01T00:00:00Z")`,
		`time.getHours() >= 9 && time.getHours() < 17`,
		`args.path.startsWith("/tmp/") && !args.path.contains("..")`,
		`size(args) < 10 && "path" in args`,
		`args.items.all(i, i.price < 100)`,
		`args.rows.all(r, r.cells.all(c, c.size() < 50))`,
		`args.query.matches("^[a-z]+$")`,
		`!(has(args.force) && args.force == true)`,
		`principal.groups.exists(g, g.startsWith("team-"))`,
		`true`,
		`method == "a" || method == "b"`,
		`method in ["a", "b"] && method in ["b", "c"]`,
	} {
		if problems := Check(text); problems != nil {
			t.Errorf("Check(%s) = %v, want nothing", text, problems)
		}
	}
}

func TestMistakesAreTheirPlacesAndReasons(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{``, `1:`},
		{`method ==`, `1:10 Syntax error`},
		{`method == "a" &&`, `1:17 Syntax error`},
		{"method == \"a\" &&\n  principal.sbuject == \"x\"", `2:12 undefined field 'sbuject'`},
		{`principle.id == "x"`, `1:1 undeclared reference to 'principle'`},
		{`request.id == "x"`, `1:1 undeclared reference to 'request'`},
		{`method == 1`, `1:8 found no matching overload for '_==_'`},
		{`principal.groups == "admins"`, `found no matching overload`},
		{`"x" in principal.groups[0]`, `found no matching overload`},
		{`tool.readOnly == "yes"`, `found no matching overload`},
		{`time > 5`, `found no matching overload`},
		{`method`, `1:1 is of type string, expected bool`},
		{`args.ok`, `expected bool; compare it, as with == true`},
		{`principal == principal`, `1:1 principal is no value of its own`},
		{`dyn(tool).sbuject == ""`, `tool is no value of its own`},
		{`outrigger.Tool{name: "x"} == tool`, `objects cannot be made here`},
		{`method.matches(tenant)`, `1:16 the regular expression has to stand here`},
		{`method.matches("(")`, `invalid matches argument`},
		{`method.matches("(a{50}){50}")`, `invalid matches argument`},
		{`method.matches("[a-z]{200,400}")`, `regex`},
		{`time == timestamp("yesterday")`, `invalid timestamp argument`},
		{`method in ["a", 1]`, `expected type`},
		{`false`, `can never be true`},
		{`1 == 2`, `can never be true`},
		{`method == "a" && false`, `can never be true`},
		{`args.x == 1 && 2 < 1`, `can never be true`},
		{`1 / 0 == 1`, `divi`},
		{`method == "a" && method == "b"`, `1:15 can never be true: its parts contradict each other`},
		{`method == "a" && tenant == "t" && "b" == method`, `contradict`},
		{`(method == "a" && method == "b") || (tool.readOnly && !tool.readOnly)`, `contradict`},
		{`method in ["a", "b"] && method == "c"`, `contradict`},
		{`args.x == "a" && args.x == true`, `contradict`},
		{`args.a.all(a, args.b.all(b, args.c.all(c, a == b && b == c)))`, `too costly`},
		{`[1].all(a, [1].all(b, [1].all(c, [1].all(d, a == d && b == c))))`, `nesting limit`},
		{strings.Repeat("(", 200) + "true" + strings.Repeat(")", 200), `recursion`},
		{`method == "` + strings.Repeat("a", maxText) + `"`, `expected at most 4096`},
		{`[` + strings.Repeat(`1,`, 2000) + `1].exists(x, x == size(method))`, `expression count exceeds limit`},
	} {
		problems := Check(tt.text)
		if len(problems) == 0 {
			t.Errorf("Check(%.80s) has nothing against it, want %q", tt.text, tt.want)
			continue
		}
		got := fmt.Sprintf("%d:%d %s", problems[0].Line, problems[0].Column, problems[0].Message)
		if !strings.Contains(got, tt.want) {
			t.Errorf("Check(%.80s) = %s, want %q", tt.text, got, tt.want)
		}
		if _, again := Compile(tt.text); len(again) != len(problems) {
			t.Errorf("Compile(%.80s) has %v against it, Check %v", tt.text, again, problems)
		}
	}
}

func TestOneMistakeIsNotToldAHundredTimes(t *testing.T) {
	if n := len(Check(strings.Repeat("#", 1000))); n == 0 || n > maxProblems {
		t.Errorf("%d problems, want 1 to %d", n, maxProblems)
	}
}

func alice() *Principal {
	return NewPrincipal(Caller{
		ID: "https://i|alice", Issuer: "https://i", Subject: "alice", Groups: []string{"dev", "ops"}, Scopes: []string{"read"},
		Claims: json.RawMessage(`{"org":{"level":4,"tags":["x",{"y":1}]},"big":9007199254740993,"huge":1e999}`), KeyLabels: map[string]string{"team": "blue"},
		SPIFFEID: "spiffe://e/a", Provider: "corp",
	})
}

func TestWhatExpressionsComeTo(t *testing.T) {
	call := func(args string) *Call {
		return &Call{
			Principal: alice(), Tenant: "acme", Method: "tools/call", Tool: Tool{Name: "read_file", ReadOnly: true},
			Prompt: "p", Resource: "file:///x", Binding: "b", Upstream: "u", Arguments: []byte(args),
			Time: time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC),
		}
	}
	const args = `{"path":"/tmp/x","n":9007199254740993,"u":18446744073709551615,"f":1.5,"e":1e3,"neg":-7,"list":[1,"two",[3],{"four":4}],
		"o":{"a":{"b":null}},"t":true,"esc":"\u0041\n\ud83d\ude00","half":"\ud800","same":"\ufffd","inf":1e999}`
	for _, tt := range []struct {
		text string
		want Result
	}{
		{`principal.id == "https://i|alice" && principal.subject == "alice" && principal.issuer == "https://i"`, True},
		{`"ops" in principal.groups && !("x" in principal.groups) && principal.scopes == ["read"]`, True},
		{`principal.claims.org.level == 4 && principal.claims.org.tags[1].y == 1`, True},
		{`principal.claims.big == 9007199254740993 && principal.claims.big != 9007199254740992`, True},
		{`principal.claims.huge > 1`, Failed},
		{`principal.claims.missing == "x"`, Failed},
		{`has(principal.claims.missing)`, False},
		{`has(principal.claims.org) && has(principal.subject)`, True},
		{`has(principal.key)`, False},
		{`principal.keyLabels.team == "blue" && principal.spiffeId == "spiffe://e/a" && principal.provider == "corp"`, True},
		{`tenant == "acme" && method == "tools/call" && binding == "b" && upstream == "u"`, True},
		{`tool.name == "read_file" && tool.readOnly && !tool.destructive && !tool.idempotent && !tool.openWorld`, True},
		{`prompt.name == "p" && resource.uri == "file:///x"`, True},
		{`time.getHours() == 10 && time < timestamp("2027-01-01T00:00:00Z")`, True},
		{`time.getHours("Europe/Zurich") == 11 && time.getHours("-02:00") == 8`, True},
		{`time.getHours("Europe/Zürich") == 11`, Failed},
		{`args.path.startsWith("/tmp/")`, True},
		{`args.path == "/tmp/X"`, False},
		{`args.n == 9007199254740993 && args.n != 9007199254740992`, True},
		{`args.u == 18446744073709551615u && args.u > 1`, True},
		{`args.f == 1.5 && args.e == 1000.0 && args.e == 1000 && args.neg == -7`, True},
		{`args.list[0] == 1 && args.list[1] == "two" && args.list[2][0] == 3 && args.list[3].four == 4`, True},
		{`args.list[9] == 1`, Failed},
		{`args.o.a.b == null && args["o"]["a"]["b"] == null && args.t == true`, True},
		{`args.esc == "A\n😀" && args.same == "\ufffd"`, True},
		{`args.half == "x"`, Failed},
		{`args.inf == 1.0`, Failed},
		{`args.missing == 1`, Failed},
		{`has(args.missing) && args.missing == 1`, False},
		{`args.path > 5`, Failed},
		{`args.path.foo == 1`, Failed},
		{`args.path in ["/tmp/x", "/tmp/y"] && "path" in args && !("q" in args)`, True},
		{`args.o == {"a": {"b": null}} && args.list == args.list && size(args.o) == 1`, True},
		{`args.list.exists(x, x == "two") && args.o.all(k, k == "a") && args.o.map(k, k) == ["a"]`, True},
		{`args.path.matches("^/tmp/[a-z]$")`, True},
		{`type(args.o) == map && type(args.list) == list && type(args.n) == int && type(args.u) == uint && type(args.f) == double`, True},
	} {
		p, problems := Compile(tt.text)
		if problems != nil {
			t.Errorf("Compile(%s): %v", tt.text, problems)
			continue
		}
		if got, err := p.Eval(call(args)); got != tt.want || (err != nil) != (tt.want == Failed) {
			t.Errorf("%s = %v, %v; want %v", tt.text, got, err, tt.want)
		}
	}
}

func TestArgumentsThatAreNoObjectFailWhatNamesThem(t *testing.T) {
	p, _ := Compile(`args.x == 1`)
	other, _ := Compile(`method == ""`)
	for _, args := range []string{
		``, `1`, `"x"`, `[]`, `null`, `{`, `{"x":1`, `{"x":1}}`, `{"x":1,}`, `{"x" 1}`, `{x:1}`, `{"x":1,"x":1}`, `{"x":1,"\u0078":2}`, `{"x":1,"X":2}`, `{"X":1,"a":1,"x":1}`,
		`{"x":01}`, `{"x":1.}`, `{"x":+1}`, `{"x":1e}`, `{"x":tru}`, "{\"x\":\"\n\"}", "{\"x\":1,\"y\":\"\xff}", "{\"\xff\":1,\"x\":1}", `{"x":1,"y":"\ud800`, `{"x":1,"\ud800":1}`,
		`{"x":1,"y":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`, `{"x":1} x`,
	} {
		c := &Call{Principal: alice(), Arguments: []byte(args)}
		if got, err := p.Eval(c); got != Failed || err == nil {
			t.Errorf("args.x == 1 for %.60s = %v, %v; want Failed", args, got, err)
		}
		if got, err := other.Eval(c); got != True {
			t.Errorf("what does not name args, for %.60s = %v, %v; want True", args, got, err)
		}
	}
	for _, args := range []string{`{"x":1,"o":{"k":1,"K":1}}`, `{"x":1,"o":{"s":1,"\u017f":1}}`, `{"x":1,"o":{"k":1,"\u212a":1}}`} {
		inside, _ := Compile(`args.o.k == 1 || args.o.s == 1`)
		c := &Call{Principal: alice(), Arguments: []byte(args)}
		if got, _ := inside.Eval(c); got != Failed {
			t.Errorf("what looks inside of %s = %v, want Failed", args, got)
		}
		if got, err := p.Eval(c); got != True {
			t.Errorf("what does not look inside of %s = %v, %v; want True", args, got, err)
		}
	}
	long := `{"x":1`
	for n := range few + 5 {
		long += fmt.Sprintf(`,"a%d":1`, n)
	}
	for more, want := range map[string]Result{`}`: True, `,"A1":1}`: Failed, `,"A20":1}`: Failed, `,"X":1}`: Failed} {
		if got, _ := p.Eval(&Call{Principal: alice(), Arguments: []byte(long + more)}); got != want {
			t.Errorf("args.x == 1 for %s = %v, want %v", long+more, got, want)
		}
	}
	many := []byte(`{"x":1`)
	for n := range maxMembers {
		many = fmt.Appendf(many, `,"a%d":1`, n)
	}
	if got, _ := p.Eval(&Call{Principal: alice(), Arguments: append(many, '}')}); got != Failed {
		t.Errorf("with %d members: %v, want Failed", maxMembers+1, got)
	}
}

func TestUnknownArgumentsMakeUnknownOnlyWhatDependsOnThem(t *testing.T) {
	for _, tt := range []struct {
		text string
		want Result
	}{
		{`args.x == 1`, Unknown},
		{`has(args.x)`, Unknown},
		{`"x" in args || size(args) > 3`, Unknown},
		{`args.items.all(i, i > 1)`, Unknown},
		{`args.x == 1 && method == "m"`, Unknown},
		{`args.x == 1 && method == "other"`, False},
		{`method == "other" && args.x == 1`, False},
		{`args.x == 1 || method == "m"`, True},
		{`args.x == 1 || method == "other"`, Unknown},
		{`method == "m" ? args.x == 1 : true`, Unknown},
		{`method == "other" ? args.x == 1 : true`, True},
		{`args.x == 1 ? method == "m" : method == "m"`, Unknown},
		{`principal.claims.missing == args.x || args.x == 1`, Unknown},
		{`principal.groups.exists(g, g == args.group)`, Unknown},
	} {
		p, problems := Compile(tt.text)
		if problems != nil {
			t.Errorf("Compile(%s): %v", tt.text, problems)
			continue
		}
		if got, err := p.Eval(&Call{Principal: alice(), Method: "m", ArgumentsUnknown: true}); got != tt.want {
			t.Errorf("%s with arguments unknown = %v, %v; want %v", tt.text, got, err, tt.want)
		}
	}
}

func TestAnEvaluationThatCostsTooMuchIsStopped(t *testing.T) {
	numbers := strings.Repeat("1,", 2999) + "1"
	long := strings.Repeat("a", 8<<20)
	for _, tt := range []struct{ text, args string }{
		{`args.a.all(x, args.b.all(y, x == y))`, `{"a":[` + numbers + `],"b":[` + numbers + `]}`},
		{`args.a + args.a + args.a + args.a == "x"`, `{"a":"` + long + `"}`},
		{`args.a.all(x, args.c == args.d)`, `{"a":[` + numbers + `],"c":[{"x":[` + numbers + `]}],"d":[{"x":[` + numbers + `]}]}`},
		{`size(args.a) > 1 && size(args.a) > 2 && size(args.a) > 3`, `{"a":"` + long + `"}`},
		{`args.a + "x" < args.a && string(args.a) < args.a`, `{"a":"` + long + `"}`},
		{`args.a.contains("ababababababab")`, `{"a":"` + long + `"}`},
		{`[args.a].map(x, x + x).map(x, x + x)[0] == "x"`, `{"a":"` + long + `"}`},
		{`args.a.matches("(a|b)*c")`, `{"a":"` + long + `"}`},
	} {
		p, problems := Compile(tt.text)
		if problems != nil {
			t.Fatalf("Compile(%s): %v", tt.text, problems)
		}
		start := time.Now()
		got, err := p.Eval(&Call{Principal: alice(), Arguments: []byte(tt.args)})
		if got != Failed {
			t.Errorf("%s = %v, %v; want Failed", tt.text, got, err)
		}
		t.Log(tt.text, time.Since(start), err)
	}
	p, _ := Compile(`args.a.all(x, args.b.all(y, x == y))`)
	if _, err := p.Eval(&Call{Principal: alice(), Arguments: []byte(`{"a":[` + numbers + `],"b":[` + numbers + `]}`)}); !errors.Is(err, ErrCost) {
		t.Errorf("the error is %v, want ErrCost", err)
	}
}

func TestNamesAreWhatAnExpressionAsksFor(t *testing.T) {
	for _, tt := range []struct {
		text string
		want Name
	}{
		{`principal.id == tenant`, NamePrincipal | NameTenant},
		{`tool.name == "x"`, NameTool},
		{`tool.readOnly`, NameTool | NameHints},
		{`has(args.x) && time.getHours() == 1`, NameArgs | NameTime},
		{`prompt.name == resource.uri && method == binding && upstream == ""`, NamePrompt | NameResource | NameMethod | NameBinding | NameUpstream},
		{`principal.groups.exists(g, g == "args")`, NamePrincipal},
	} {
		p, problems := Compile(tt.text)
		if problems != nil {
			t.Fatalf("Compile(%s): %v", tt.text, problems)
		}
		if p.names != tt.want || !p.Names(tt.want) || !p.Only(tt.want) || p.Only(0) {
			t.Errorf("%s names %b, want %b", tt.text, p.names, tt.want)
		}
	}
}

func FuzzExpressionsNeverPanicAndRunWithinTheirCost(f *testing.F) {
	for _, text := range []string{`args.x == 1`, `principal.groups.all(g, g == tenant)`, `has(args.a.b) && args.a.b in ["x"]`, `method.matches("a+")`, `1/0 == 1`} {
		f.Add(text, `{"x":1,"a":{"b":"x"}}`)
	}
	who := alice()
	f.Fuzz(func(t *testing.T, text, args string) {
		p, problems := Compile(text)
		if (p == nil) != (len(problems) > 0) {
			t.Fatalf("Compile(%q) = %v, %v", text, p, problems)
		}
		if p == nil {
			return
		}
		known, _ := p.Eval(&Call{Principal: who, Arguments: []byte(args)})
		unknown, _ := p.Eval(&Call{Principal: who, ArgumentsUnknown: true})
		if known == Unknown {
			t.Errorf("%q with arguments %q is Unknown", text, args)
		}
		if unknown == True && known == False || unknown == False && known == True {
			t.Errorf("%q is %v with arguments %q, and %v whatever they are", text, known, args, unknown)
		}
	})
}

func FuzzArgumentsAreReadAsJSONSays(f *testing.F) {
	for _, args := range []string{`{"a":[1,{"b":"c"}],"d":-1.5e3}`, `{"a":"\ud83d\ude00"}`, `{}`, ` {"a" : null } `, `{"a":1,"a":2}`} {
		f.Add([]byte(args))
	}
	f.Fuzz(func(t *testing.T, args []byte) {
		o, err := newObject(args, false)
		if err != nil {
			return
		}
		if !json.Valid(args) {
			o.readAll() // an escape inside of a text may still be wrong: that is seen here
			return
		}
		var want map[string]json.RawMessage
		if err := json.Unmarshal(args, &want); err != nil || len(want) != len(o.members) {
			t.Errorf("%q has %d members, %v; want %d", args, len(o.members), err, len(want))
		}
	})
}

func BenchmarkEval(b *testing.B) {
	who := alice()
	args := []byte(`{"path":"/tmp/some/file.txt","mode":"append","content":"hello, world","n":12}`)
	for name, text := range map[string]string{
		"principal": `"ops" in principal.groups`,
		"argument":  `args.path.startsWith("/tmp/")`,
		"both":      `args.path.startsWith("/tmp/") && args.mode in ["read", "append"] && args.n < 100 && "ops" in principal.groups`,
		"loop":      `principal.groups.exists(g, g == "ops")`,
		"regex":     `args.path.matches("^/tmp/[a-z/.]+$")`,
	} {
		p, problems := Compile(text)
		if problems != nil {
			b.Fatal(problems)
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if got, err := p.Eval(&Call{Principal: who, Arguments: args}); got != True {
					b.Fatal(got, err)
				}
			}
		})
	}
}

func BenchmarkCheck(b *testing.B) {
	for b.Loop() {
		if p := Check(`args.path.startsWith("/tmp/") && args.mode in ["read", "append"] && "ops" in principal.groups`); p != nil {
			b.Fatal(p)
		}
	}
}

// arbitrary is an expression of a small world, about arguments more often than not.
func arbitrary(r *rand.Rand, depth int) string {
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	if depth == 0 || r.IntN(4) == 0 {
		return pick(`args.x == 1`, `args.y == "a"`, `has(args.x)`, `args.x > 0`, `args.l.all(i, i == 1)`, `args.l.exists(i, i == args.x)`, `"x" in args`,
			`args[tenant] == 1`, `args.l[0] == 1`, `size(args.l) == 2`, `args.o.p == "q"`, `has(args.o.p)`, `args.y.startsWith("a")`, `args.x in [1, 2]`, `args.x in args.l`,
			`principal.groups.exists(g, g == args.y)`, `principal.groups.all(g, g == "dev" || args.x == 1)`, `[args.x].exists(i, i == 1)`, `{"k": args.x}.k == 1`,
			`args.l.map(i, i + 1) == [2]`, `args.l.filter(i, i == 1).size() == 1`, `args.l.exists_one(i, i == 1)`, `args.x == args.x`, `type(args.x) == int`, `int(args.y) == 1`,
			`method == "m"`, `tenant == "x"`, `principal.claims.none == 1`, `tool.readOnly`, `1 / size(tenant) == 1`, `1 / (size(tenant) - 1) == 1`, `true`, `false`)
	}
	a, b := arbitrary(r, depth-1), arbitrary(r, depth-1)
	switch r.IntN(6) {
	case 0:
		return "!(" + a + ")"
	case 1, 2:
		return "(" + a + ") && (" + b + ")"
	case 3, 4:
		return "(" + a + ") || (" + b + ")"
	default:
		return "(" + a + ") ? (" + b + ") : (" + arbitrary(r, depth-1) + ")"
	}
}

func TestWhatIsSaidOfUnknownArgumentsHoldsForAll(t *testing.T) {
	arguments := []string{`{}`, `{"x":1}`, `{"x":2,"y":"a"}`, `{"x":1,"y":"dev","l":[1]}`, `{"x":"1","l":[]}`, `{"l":[1,2],"o":{"p":"q"},"y":"1"}`, `{"x":null,"o":1,"l":{"1":1}}`, `{"x":3,"l":[1,"a"],"o":{}}`, `[]`}
	said := map[Result]int{}
	for seed := range uint64(1000) {
		text := arbitrary(rand.New(rand.NewPCG(seed, 5)), 3)
		p, problems := Compile(text)
		if problems != nil {
			continue
		}
		call := Call{Principal: alice(), Method: "m", Tenant: "x", Tool: Tool{ReadOnly: true}, ArgumentsUnknown: true}
		unknown, _ := p.Eval(&call)
		said[unknown]++
		for _, args := range arguments {
			call := Call{Principal: alice(), Method: "m", Tenant: "x", Tool: Tool{ReadOnly: true}, Arguments: []byte(args)}
			known, err := p.Eval(&call)
			if known == Unknown || unknown != Unknown && known != unknown {
				t.Errorf("seed %d: %s is %v whatever the arguments are, and %v, %v with %s", seed, text, unknown, known, err, args)
			}
		}
	}
	if said[True] < 50 || said[False] < 10 || said[Failed] < 10 || said[Unknown] < 500 {
		t.Errorf("%v: the world is too narrow to show anything", said)
	}
}
