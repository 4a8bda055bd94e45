package wire

import (
	"bytes"
	"encoding/json"
	"testing"
)

func TestResultsAreMessagesThatNameTheirCaller(t *testing.T) {
	for name, results := range map[string]map[string]Result{"call": CallResult, "read": ReadResult, "prompt": PromptResult} {
		for _, era := range []string{Stateless, Legacy} {
			got := AppendResult(nil, results[era], []byte(`"7"`), []byte("me"), []byte("100000001"), 3)
			var m struct {
				ID     string
				Result map[string]any
			}
			if err := json.Unmarshal(got, &m); err != nil || m.ID != "7" || !bytes.Contains(got, []byte(`"me 100000001 bbb"`)) {
				t.Errorf("%s, %s: %s, %v", name, era, got, err)
			}
			if _, complete := m.Result["resultType"]; complete != (era == Stateless) {
				t.Errorf("%s, %s: resultType is there: %v\n%s", name, era, complete, got)
			}
		}
	}
	got := AppendProgress(nil, []byte("5"), []byte("me"), []byte("1"), 2, 3)
	if !json.Valid(got) {
		t.Errorf("progress %s is not JSON", got)
	}
}

func TestPaddingOfAnyLengthIsKnown(t *testing.T) {
	for _, n := range []int{0, 1, len(Padding), len(Padding) + 1, 3*len(Padding) - 1} {
		b := AppendText(nil, nil, nil, n)[2:]
		if len(b) != n || !IsPadding(b) {
			t.Errorf("%d bytes of padding are %d, known: %v", n, len(b), IsPadding(b))
		}
		if n > 0 {
			if b[n-1] = 'x'; IsPadding(b) {
				t.Errorf("%d bytes that end in x are taken for padding", n)
			}
		}
	}
}
