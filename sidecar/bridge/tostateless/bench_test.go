package tostateless

import (
	"context"
	"fmt"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// manyTools is a result of tools/list with tools as servers have them, of some 700 bytes each.
func manyTools(n int) []byte {
	b := []byte(`{"resultType":"complete","ttlMs":60000,"cacheScope":"private","tools":[`)
	for i := range n {
		if i > 0 {
			b = append(b, ',')
		}
		b = fmt.Appendf(b, `{"name":"search_documents_%d","title":"Search documents","description":"Looks for documents in a collection by words, `+
			`by who wrote them and by when that was. What fits best comes first; \"exact\" words have to be quoted.","inputSchema":{"type":"object",`+
			`"properties":{"query":{"type":"string","description":"what to look for, in words"},"collection":{"type":"string","enum":["all","mine","shared"]},`+
			`"limit":{"type":"integer","minimum":1,"maximum":100,"default":10}},"required":["query"],"additionalProperties":false},`+
			`"outputSchema":{"type":"object","properties":{"documents":{"type":"array","items":{"type":"object","properties":{"id":{"type":"string"},`+
			`"score":{"type":"number"}}}}}},"annotations":{"readOnlyHint":true,"openWorldHint":false}}`, i)
	}
	return append(b, `]}`...)
}

// lister answers every request with the same result, at little cost.
type lister struct {
	*fake
	result []byte
	body   []byte
}

func (l *lister) Call(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	if c.Message.Method == mcp.MethodDiscover {
		return l.fake.Call(ctx, c)
	}
	l.body = append(append(l.body[:0], `{"jsonrpc":"2.0","id":`...), c.Message.ID.Of(c.Message.Raw)...)
	l.body = append(append(append(l.body, `,"result":`...), l.result...), '}')
	return upstream.Whole(200, l.body), nil
}

// BenchmarkToolsList is what a tools/list of a legacy client costs at a server that answers at once, without writing it out.
func BenchmarkToolsList(b *testing.B) {
	for _, n := range []int{10, 1000} {
		for _, version := range []string{"2025-11-25", "2025-03-26"} {
			b.Run(fmt.Sprintf("%d/%s", n, version), func(b *testing.B) {
				result := manyTools(n)
				c := connect(b, newBridge(b, &lister{fake: &fake{}, result: result}), version, `{}`)
				q := requestCall(b, `1`, mcp.MethodToolsList, "")
				b.SetBytes(int64(len(result)))
				b.ReportAllocs()
				for b.Loop() {
					a, err := c.session.Call(b.Context(), q)
					if err != nil || a.Length < int64(len(result))/2 {
						b.Fatalf("got %+v, %v", a, err)
					}
					a.Close()
				}
			})
		}
	}
}
