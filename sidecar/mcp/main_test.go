package mcp

import (
	"net/http"
	"testing"
)

// header makes a request header of names and values in turn.
func header(pairs ...string) http.Header {
	h := make(http.Header)
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

// without copies a header, leaving one name out.
func without(h http.Header, name string) http.Header {
	h = h.Clone()
	h.Del(name)
	return h
}

// with copies a header, adding a value to a name.
func with(h http.Header, name, value string) http.Header {
	h = h.Clone()
	h.Add(name, value)
	return h
}

func checkError(t *testing.T, what string, got *Error, code, status int) {
	t.Helper()
	switch {
	case got == nil && code != 0:
		t.Errorf("%s: got no error, want %d", what, code)
	case got != nil && (got.Code != code || got.Status != status || got.Message == ""):
		t.Errorf("%s: got %d (%s) with status %d, want %d with status %d", what, got.Code, got.Message, got.Status, code, status)
	}
}
