package upstream

import (
	"context"
	"net/http"
	"strings"
)

// headerVia names the sidecars that a request has passed (RFC 9110, 7.6.3).
const headerVia = "Via"

// WithVia is a context that knows by which way its request came. What a server is asked before the request itself can be
// sent, which wires it speaks, then goes by the same way: else sidecars that lead to each other would each wait for the
// other's answer, and no request would ever come round. A request that came by no sidecar keeps its context.
func WithVia(ctx context.Context, h http.Header) context.Context {
	if len(h[headerVia]) == 0 {
		return ctx
	}
	return viaContext{ctx, h[headerVia]}
}

// Via is the way in the form of one header; empty for none.
func Via(ctx context.Context) string {
	way, _ := ctx.Value(viaKey{}).([]string)
	return strings.Join(way, ", ")
}

type viaKey struct{}

type viaContext struct {
	context.Context
	way []string
}

// Value implements context.Context.
func (c viaContext) Value(key any) any {
	if key == (viaKey{}) {
		return c.way
	}
	return c.Context.Value(key)
}

// AfterFunc is for package context, which would start a goroutine for every context derived from this one.
func (c viaContext) AfterFunc(f func()) func() bool { return context.AfterFunc(c.Context, f) }
