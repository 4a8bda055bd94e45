package jwt

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/go-jose/go-jose/v4"
)

// BenchmarkKnown is a token that was verified before, of the sizes that issuers make, with one and with four providers.
func BenchmarkKnown(b *testing.B) {
	f := newFake(b, public("k", rsaKey))
	i := newIssuers(b, Options{})
	v := verifierOf(b, i, providerOf(f.issuer))
	for _, size := range []int{0, 1000, 4000} {
		for _, others := range []int{0, 3} {
			var all Verifiers
			for n := range others {
				all = append(all, verifierOf(b, i, providerOf(fmt.Sprint("https://127.0.0.1:", n+1))))
			}
			all = append(all, v)
			token, ctx := token(f.issuer, "k", rsaKey, map[string]any{"more": strings.Repeat("x", size)}), context.Background()
			b.Run(fmt.Sprintf("bytes=%d/providers=%d", len(token), len(all)), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := all.Verify(ctx, token); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkKnownInParallel is many callers with tokens of their own.
func BenchmarkKnownInParallel(b *testing.B) {
	f := newFake(b, public("k", ecKey))
	v := verifierOf(b, newIssuers(b, Options{}), providerOf(f.issuer))
	var tokens [][]byte
	for n := range 64 {
		tokens = append(tokens, token(f.issuer, "k", ecKey, map[string]any{"sub": fmt.Sprint(n)}))
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for n := 0; pb.Next(); n++ {
			if _, err := v.Verify(context.Background(), tokens[n%len(tokens)]); err != nil {
				b.Error(err)
			}
		}
	})
}

// BenchmarkNew is a token that comes for the first time.
func BenchmarkNew(b *testing.B) {
	f := newFake(b, public("rsa", rsaKey), public("ec", ecKey))
	v := verifierOf(b, newIssuers(b, Options{}), providerOf(f.issuer))
	for name, bytes := range map[jose.SignatureAlgorithm][]byte{
		jose.RS256: token(f.issuer, "rsa", rsaKey, nil), jose.ES256: token(f.issuer, "ec", ecKey, nil),
	} {
		expect(b, v, bytes, "")
		b.Run(string(name), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				u, err := parse(bytes)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := v.judge(context.Background(), bytes, u); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
