package api

import (
	"fmt"
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/store"
	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

// BenchmarkApply changes one resource among many.
func BenchmarkApply(b *testing.B) {
	for _, n := range []int{100, 1000} {
		b.Run(fmt.Sprintf("stored=%d", n), func(b *testing.B) {
			s, err := store.Open(b.Context(), store.Options{DataDir: b.TempDir()})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			a, err := New(s, fleet{}, authority{}, Options{Token: secret})
			if err != nil {
				b.Fatal(err)
			}
			for first := 0; first < n; first += maxResources {
				var page []*outriggerv1.Resource
				for i := first; i < min(n, first+maxResources); i++ {
					page = append(page, pair(i, 0)...)
				}
				for len(page) > 0 {
					batch := page[:min(len(page), maxResources)]
					page = page[len(batch):]
					if _, err := a.Apply(b.Context(), &outriggerv1.ApplyRequest{Resources: batch}); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportAllocs()
			for i := 1; b.Loop(); i++ {
				if _, err := a.Apply(b.Context(), &outriggerv1.ApplyRequest{Resources: pair(7, i)}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// pair is an upstream and the binding that names it, in their nth form.
func pair(i, n int) []*outriggerv1.Resource {
	text := fmt.Sprintf(`
kind: Upstream
name: u%d
spec: {http: {url: "http://127.0.0.1:3000/mcp?%d"}}
---
kind: Binding
name: b%d
spec: {selector: {matchLabels: {app: a%d}}, upstreams: [{name: u%d}]}
`, i, n, i, i, i)
	resources, _ := resource.Parse("", []byte(text))
	return resources
}
