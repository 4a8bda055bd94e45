package tolegacy

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/budget"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// Clients that do not read what they asked for take all the memory there is for answers, and no more. Whoever comes then
// is told so, in few bytes; nothing is lost of the account.
func TestAnswersThatNobodyReadsAreBounded(t *testing.T) {
	const size = 64 << 10
	body := func(m *mcp.Message) []byte {
		return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{"text":%q}}`, m.ID.Of(m.Raw), strings.Repeat("x", size))
	}
	for name, answer := range map[string]func(ctx context.Context, m *mcp.Message) *upstream.Answer{
		"bodies": func(_ context.Context, m *mcp.Message) *upstream.Answer { return upstream.Whole(200, body(m)) },
		"streams": func(ctx context.Context, m *mcp.Message) *upstream.Answer {
			e := newScript(ctx, `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":1}}`, string(body(m)))
			return e.answer()
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fake{}
			f.call = func(ctx context.Context, _ *fakeSession, m *mcp.Message) (*upstream.Answer, error) {
				return answer(ctx, m), nil
			}
			all := budget.New(8 * size)
			s := newBridge(t, f, func(o *Options) { o.Budget = all })
			c := newClient(t, s, "ann", `{}`)
			c.meta = `"io.modelcontextprotocol/logLevel":"debug",`
			var unread []*upstream.Answer
			var refused []error
			for range 20 {
				a, err := s.Call(context.Background(), c.tool("1", "t", "x", ""))
				if err != nil {
					refused = append(refused, err)
					continue
				}
				if unread = append(unread, a); a.Events != nil {
					if _, err := a.Events.Next(); err != nil { // the message before the response
						t.Fatal(err)
					}
					eventually(t, "the response is here, or refused", a.Events.Ready)
				}
			}
			if used := all.Used(); used > 9*size {
				t.Errorf("%d bytes are taken, want at most %d and what is small", used, 8*size)
			}
			for _, a := range unread {
				if a.Events != nil {
					if _, err := a.Events.Next(); err != nil {
						refused = append(refused, err)
					}
				}
				a.Close()
				a.Close()
			}
			if n := 20 - len(refused); n < 3 || n > 8 {
				t.Errorf("%d of 20 answers were there, want 3 to 8", n)
			}
			for _, err := range refused {
				if wantKind(t, err, upstream.Overloaded); !strings.Contains(err.Error(), "try again") {
					t.Errorf("refused with %v, want to be told to try again", err)
				}
			}
			c.do(c.tool("2", "t", "x", "")).want(t, 200, `"id":2`, "xxx")
			nothingInUse(t, s)
		})
	}
}

func TestWhatIsKeptForARetryIsOfTheProcesssBudgetToo(t *testing.T) {
	f, calls := asking(elicit("1", "one"))
	all := budget.New(100 << 10)
	s := newBridge(t, f, func(o *Options) { o.Budget = all })
	c := newClient(t, s, "ann", everything)
	q := questions(t, c.do(c.tool("1", "t", "x", "")))
	(<-calls).result(strings.Repeat("x", 200<<10)) // while nobody waits
	eventually(t, "the answer is known", func() bool { return isSettled(s) })
	_, err := s.Call(testContext(t), c.tool("2", "t", "x", q.retry(accepted)))
	wantKind(t, err, upstream.Overloaded)
	if !all.Take(99 << 10) {
		t.Errorf("%d bytes are still taken", all.Used())
	}
	all.Give(99 << 10)
	nothingInUse(t, s)
}
