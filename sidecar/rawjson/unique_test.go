package rawjson

import (
	"fmt"
	"strings"
	"testing"
)

func TestUniqueFindsNamesThatStandTwice(t *testing.T) {
	var many strings.Builder
	for i := range 40 {
		fmt.Fprintf(&many, `"k%d":{},`, i)
	}
	for _, tt := range []struct {
		text string
		want bool
	}{
		{`{}`, true},
		{`[]`, true},
		{`"a"`, true},
		{`{"a":1,"b":2}`, true},
		{`{"a":{"a":{"a":1}}}`, true},
		{`[{"a":1},{"a":2}]`, true},
		{`{"a":1,"A":2}`, true},
		{`{"a":1,"a":1}`, false},
		{`{"a":1,"\u0061":2}`, false},
		{`{"a":1,"b":{"c":1,"d":[0,{"e":1,"e":2}]}}`, false},
		{`{` + many.String() + `"z":1}`, true},
		{`{` + many.String() + `"k3":1}`, false},
		{`{` + many.String() + `"k39":1}`, false},
		{`{` + many.String() + `"z":1,"z":2}`, false},
	} {
		if got := Unique([]byte(tt.text), Whole([]byte(tt.text))); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.text, got, tt.want)
		}
	}
}
