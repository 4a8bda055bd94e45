package mcp

import (
	"errors"
	"strings"
	"testing"
)

func TestIsBatch(t *testing.T) {
	for text, want := range map[string]bool{"[]": true, " \r\n\t[": true, "{}": false, "": false, `"["`: false, "\f[": false} {
		if got := IsBatch([]byte(text)); got != want {
			t.Errorf("IsBatch(%q): got %v, want %v", text, got, want)
		}
	}
}

func TestScanBatchReadsEveryMember(t *testing.T) {
	notification := `{"jsonrpc":"2.0","method":"notifications/vendor"}`
	got, err := ScanBatch([]byte(" [ "+legacyCall+" ,\n"+notification+"] "), Limits{}, 2)
	if err != nil || len(got) != 2 || string(got[0].Raw) != legacyCall || string(got[1].Raw) != notification || got[1].Kind != Notification {
		t.Fatalf("got %+v, %v", got, err)
	}
}

func TestScanBatchRefuses(t *testing.T) {
	ping := `{"jsonrpc":"2.0","id":5,"method":"ping"}`
	for _, row := range []struct {
		name, text string
		code       int
		id         string
	}{
		{"an empty batch", `[]`, CodeInvalidRequest, ""},
		{"an object", ping, CodeInvalidRequest, ""},
		{"too many", `[` + strings.Repeat(ping+",", 3) + ping + `]`, CodeInvalidRequest, ""},
		{"a member that is no object", `[` + ping + `,1]`, CodeInvalidRequest, ""},
		{"a batch inside", `[[` + ping + `]]`, CodeInvalidRequest, ""},
		{"a member at fault", `[` + ping + `,{"jsonrpc":"2.0","id":6,"method":"ping","method":"x"}]`, CodeInvalidRequest, "6"},
		{"initialize", `[` + legacyInitialize + `]`, CodeInvalidRequest, ""},
		{"half a batch", `[` + ping, CodeParseError, ""},
		{"a comma too many", `[` + ping + `,]`, CodeParseError, ""},
		{"more behind it", `[` + ping + `]x`, CodeParseError, ""},
		{"a member too deep", `[{"x":` + strings.Repeat("[", 128) + strings.Repeat("]", 128) + `}]`, CodeInvalidRequest, ""},
	} {
		_, err := ScanBatch([]byte(row.text), Limits{}, 3)
		var e *Error
		if !errors.As(err, &e) || e.Code != row.code || string(e.ID) != row.id || e.Status != 400 {
			t.Errorf("%s: got %v, want %d with id %q", row.name, err, row.code, row.id)
		}
	}
}
