package main

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// statelessVersion is the first protocol version without sessions. Versions are dates and compare as such.
const statelessVersion = "2026-07-28"

// newHandler serves both wires at one URL. The SDK has a handler for each: one that answers every request by itself,
// and one that keeps sessions and refuses the newer version with -32022. The version header, which the newer wire
// requires on every request (MCP 2026-07-28, basic/transports/streamable-http), says which of them is meant.
func newHandler(log *slog.Logger) http.Handler {
	server := newServer(log)
	same := func(*http.Request) *mcp.Server { return server }
	stateless := mcp.NewStreamableHTTPHandler(same, &mcp.StreamableHTTPOptions{
		Stateless: true, PropagateRequestCancellation: true, Logger: log,
	})
	sessions := mcp.NewStreamableHTTPHandler(same, &mcp.StreamableHTTPOptions{
		SessionTimeout: 30 * time.Minute, Logger: log,
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("MCP-Protocol-Version") >= statelessVersion {
			stateless.ServeHTTP(w, r)
			return
		}
		sessions.ServeHTTP(w, r)
	})
}
