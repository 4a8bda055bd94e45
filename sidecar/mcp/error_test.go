package mcp

import (
	"errors"
	"testing"
)

func TestAppendError(t *testing.T) {
	for _, row := range []struct {
		name, id string
		e        Error
		want     string
	}{
		{"a string id", `"7"`, Error{Code: CodeInvalidParams, Message: "no"}, `{"jsonrpc":"2.0","id":"7","error":{"code":-32602,"message":"no"}}`},
		{"an integer id and data", `7`, Error{Code: 1429, Message: "no", Data: []byte("{\n\"a\":1}")}, `{"jsonrpc":"2.0","id":7,"error":{"code":1429,"message":"no","data":{"a":1}}}`},
		{"no id", ``, Error{Code: CodeParseError, Message: "no"}, `{"jsonrpc":"2.0","error":{"code":-32700,"message":"no"}}`},
		{"a text to escape", `7`, Error{Message: "a\"\\\n\x01ü"}, `{"jsonrpc":"2.0","id":7,"error":{"code":0,"message":"a\"\\\n\u0001ü"}}`},
		{"a text that is not UTF-8", `7`, Error{Message: "a\xff"}, `{"jsonrpc":"2.0","id":7,"error":{"code":0,"message":"a\ufffd"}}`},
	} {
		var id []byte
		if row.id != "" {
			id = []byte(row.id)
		}
		got := string(AppendError(nil, id, &row.e))
		if got != row.want {
			t.Errorf("%s: got %s, want %s", row.name, got, row.want)
		}
		if m := mustScan(t, got); m.Kind != Response || string(m.ID.Of(m.Raw)) != row.id {
			t.Errorf("%s: read back with id %s", row.name, m.ID.Of(m.Raw))
		}
	}
}

func TestErrorsAreErrors(t *testing.T) {
	_, err := Scan(nil, Limits{})
	var e *Error
	if !errors.As(err, &e) || e.Error() == "" {
		t.Errorf("got %v", err)
	}
}
