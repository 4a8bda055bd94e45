package tostateless

import (
	"fmt"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/budget"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// Clients that do not read what they asked for take all the memory there is for answers, and no more; nothing is lost of
// the account.
func TestAnswersThatNobodyReadsAreBounded(t *testing.T) {
	const size = 64 << 10
	all := budget.New(8 * size)
	f := &fake{script: func(s sent) (*upstream.Answer, error) {
		return s.result(fmt.Sprintf(`{"resultType":"complete","content":[],"text":%q}`, strings.Repeat("x", size))), nil
	}}
	s := newBridge(t, f, func(o *Options) { o.Budget = all })
	c := connect(t, s, mcp.NewestLegacy, allCapabilities)
	var unread []*upstream.Answer
	refused := 0
	for i := range 20 {
		a, err := c.session.Call(testContext(t), requestCall(t, fmt.Sprint(i), mcp.MethodToolsCall, `{"name":"t","arguments":{}}`))
		if err == nil {
			unread = append(unread, a)
			continue
		}
		refused++
		if e, ok := err.(*upstream.Error); !ok || e.Kind != upstream.Overloaded || !strings.Contains(e.Detail, "try again") {
			t.Errorf("refused with %v, want to be told to try again", err)
		}
	}
	if n := len(unread); n < 3 || n > 8 || all.Used() > 9*size {
		t.Errorf("%d answers of 20 were there, with %d bytes; want 3 to 8 and at most %d", n, all.Used(), 8*size)
	}
	for _, a := range unread {
		a.Close()
		a.Close()
	}
	if r := c.tool(`"last"`, "t", `{}`); !strings.Contains(r.last, "xxx") {
		t.Errorf("once they are gone: %.200s, want an answer", r.last)
	}
}
