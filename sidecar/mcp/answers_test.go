package mcp

import "testing"

func TestAResponseAnswersTheRequestWithItsID(t *testing.T) {
	response := func(id string) string { return `{"jsonrpc":"2.0","id":` + id + `,"result":{}}` }
	failure := func(id string) string { return `{"jsonrpc":"2.0","id":` + id + `,"error":{}}` }
	for _, row := range []struct {
		message, id string
		want        bool
	}{
		{response("1"), "1", true},
		{response("1"), "2", false},
		{response("1"), "11", false},
		{response("11"), "1", false},
		{response(`"1"`), "1", false},
		{response("1"), `"1"`, false},
		{response("9007199254740993"), "9007199254740992", false},
		{response(`"a\u00e9\/"`), `"aé/"`, true},
		{response(`"aé"`), `"a\u00E9"`, true},
		{response(`"\u0031"`), "1", false},
		{response(`"\ud800"`), `"\ud801"`, false},
		{failure("1"), "1", true},
		{failure("2"), "1", false},
		{failure("null"), "1", true},
		{`{"jsonrpc":"2.0","error":{}}`, "1", true},
		{`{"jsonrpc":"2.0","id":1,"method":"ping"}`, "1", false},
	} {
		m := mustScan(t, row.message)
		if got := m.Answers([]byte(row.id)); got != row.want {
			t.Errorf("%s answers %s: %v, want %v", row.message, row.id, got, row.want)
		}
	}
}

func TestPeekResponse(t *testing.T) {
	for _, row := range []struct {
		prefix  string
		id      string
		outcome Outcome
		foreign bool
	}{
		{"", "", OutcomeUnknown, false},
		{" \r\n", "", OutcomeUnknown, false},
		{"<html>", "", OutcomeUnknown, true},
		{"[{", "", OutcomeUnknown, true},
		{`{"jsonrpc":"2.0","id":12`, "", OutcomeUnknown, false}, // it may go on
		{`{"jsonrpc":"2.0","id":12 ,`, "12", OutcomeUnknown, false},
		{`{"id":"a","result":{"x`, `"a"`, OutcomeResult, false},
		{`{"id":"a","error`, `"a"`, OutcomeUnknown, false},
		{`{"error":{},"id":1}`, "", OutcomeError, false},
		{`{"id":1,"method":"ping"`, "1", OutcomeUnknown, true},
		{`{"params":{"method":"x"},"id":2}`, "2", OutcomeUnknown, false},
	} {
		p := PeekResponse([]byte(row.prefix))
		if got := string(p.ID.Of([]byte(row.prefix))); got != row.id || p.Outcome != row.outcome || p.Foreign != row.foreign {
			t.Errorf("PeekResponse(%q) = id %q, outcome %v, foreign %v; want %q, %v, %v",
				row.prefix, got, p.Outcome, p.Foreign, row.id, row.outcome, row.foreign)
		}
	}
}

func TestPeekingAtAResponseDoesNotAllocate(t *testing.T) {
	prefix, id := []byte(`{"jsonrpc":"2.0","id":12,"result":{"content":[`), []byte("12")
	n := testing.AllocsPerRun(100, func() {
		if p := PeekResponse(prefix); !p.Answers(prefix, id) || !p.Settled() {
			t.Fatalf("%s is no answer to %s", prefix, id)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

// FuzzPeekResponse holds that no part of a response that Scan takes is refused for its beginning.
func FuzzPeekResponse(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":12,"result":{"id":3}}`))
	f.Add([]byte(` {"error":{"code":1},"id":null,"jsonrpc":"2.0"}`))
	f.Add([]byte(`{"\u0069d":"a\"b","x":[1,{"method":2}],"jsonrpc":"2.0","result":-0}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := Scan(data, Limits{MaxDepth: AnswerDepth})
		whole := err == nil && m.Kind == Response
		for n := range len(data) + 1 {
			p := PeekResponse(data[:n])
			if whole && !p.Answers(data[:n], m.ID.Of(m.Raw)) {
				t.Fatalf("%q: its first %d bytes are refused: %+v", data, n, p)
			}
		}
	})
}
