package main

import (
	"strings"
	"testing"
)

func TestAMistakeBesideTheSpecHidesNoneWithin(t *testing.T) {
	_, err := readInput([]string{"-"}, strings.NewReader(`
kind: Upstream
name: demo
lables: {app: demo}
spec: {http: {url: "ftp://x"}}
---
kind: Binding
name: demo
spec: {selector: {}, upstreams: [{name: other}]}
`))
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"lables", "ftp://x", `no Upstream is named "other"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not among the mistakes:\n%v", want, err)
		}
	}
}
