package credential

import (
	"fmt"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/identity"
)

// hot is the Source of an endpoint that is not asked, with tokens at hand for the sidecar and for callers.
func hot(tb testing.TB, exchanges bool, callers int) (*Source, []*identity.Principal) {
	tb.Helper()
	all := New(Options{})
	tb.Cleanup(func() { _ = all.Close(tb.Context()) })
	t := newTokens(all, "up", "Bearer ", &endpoint{exchanges: exchanges})
	s := &Source{header: "Authorization", tokens: t}
	now := all.now()
	g := grant{token: "given", lifetime: maxLifetime}
	t.own.current.Store(t.tokenOf(g, now))
	var who []*identity.Principal
	for i := range callers {
		p := &identity.Principal{ID: fmt.Sprint("issuer|", i), Token: fmt.Sprint(strings.Repeat("claims.", 150), i)}
		t.callers.slot(p.Token, now).current.Store(t.tokenOf(g, now))
		who = append(who, p)
	}
	return s, who
}

func TestATokenAtHandCostsNoMemory(t *testing.T) {
	for _, exchanges := range []bool{false, true} {
		s, who := hot(t, exchanges, 10)
		if n := testing.AllocsPerRun(100, func() { _, _ = s.Value(t.Context(), who[3]) }); n != 0 {
			t.Errorf("%v allocations (exchange: %v), want 0", n, exchanges)
		}
	}
}

// BenchmarkValue is what a call pays whose token is at hand; its target is 200 ns and no allocation.
func BenchmarkValue(b *testing.B) {
	for _, callers := range []int{0, 1, 4000} {
		name := fmt.Sprint("callers=", callers)
		if callers == 0 {
			name = "client credentials"
		}
		b.Run(name, func(b *testing.B) {
			s, who := hot(b, callers > 0, callers)
			ctx := b.Context()
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				var caller *identity.Principal
				if callers > 0 {
					caller = who[i%callers]
					i++
				}
				if v, err := s.Value(ctx, caller); v == "" || err != nil {
					b.Fatal(v, err)
				}
			}
		})
	}
}
