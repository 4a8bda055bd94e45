// Command server is the quickstart's example: a small MCP server built with the official Go SDK, of the kind that a
// sidecar stands beside. It speaks both wires at one URL, http://ADDRESS/mcp, and knows nothing of Outrigger.
//
// It has the tools echo, add, sleep, progress and ask, two resources, a resource template and a prompt. GET /healthz
// answers while it runs. SIGTERM and SIGINT end it, after the calls under way or stopTimeout.
package main

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// stopTimeout is how long calls may go on after a signal.
const stopTimeout = 5 * time.Second

func main() {
	address := flag.String("listen", "127.0.0.1:15100", "serve MCP here, at /mcp")
	flag.Parse()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, *address, log); err != nil {
		log.Error("server stopped", "error", err)
		os.Exit(1)
	}
}

// serve answers at address until ctx ends.
func serve(ctx context.Context, address string, log *slog.Logger) error {
	mux := http.NewServeMux()
	mux.Handle("/mcp", newHandler(log))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("ok\n")) })
	s := &http.Server{Addr: address, Handler: mux, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 2 * time.Minute}
	stopped := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		defer close(stopped)
		stopping, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		if s.Shutdown(stopping) != nil {
			s.Close() // cuts what is left, such as streams that their clients keep open
		}
	})
	log.Info("server starting", "url", "http://"+address+"/mcp")
	err := s.ListenAndServe()
	if !cancel() {
		<-stopped
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
