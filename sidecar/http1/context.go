package http1

import (
	"net/http"

	"github.com/outrigger-mesh/outrigger/sidecar/lazyctx"
)

// requestContext is a request's context: cancelled when the client leaves and when the handler returns. It is new for
// each request, so that nothing held from one is woken by the next.
type requestContext struct {
	lazyctx.Context
	c *conn
}

// Value implements context.Context with the keys of net/http's server.
func (x *requestContext) Value(key any) any {
	switch key {
	case http.LocalAddrContextKey:
		return x.c.local
	case http.ServerContextKey:
		return x.c.s.fallback
	}
	return nil
}
