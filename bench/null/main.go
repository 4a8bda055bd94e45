// Command null is an MCP server that does nothing, as cheaply as it can: the upstream of every measurement that is
// about what stands before it.
//
//	null [-era stateless|legacy|both] [-listen 127.0.0.1:0] [-tools 1] [-prefix ""]
//
// It prints "listening ADDRESS" once it serves, MCP at every path and counters as JSON at GET /stats, until SIGTERM or
// SIGINT. The load command (bench/load) asks it for answers of a size, late or streamed ones, in its calls' arguments.
// Package server is what it is made of.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/outrigger-mesh/outrigger/bench/null/server"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("null: ")
	var c server.Config
	flag.StringVar(&c.Era, "era", server.Both, "stateless, legacy or both")
	flag.IntVar(&c.Tools, "tools", 1, "how many tools are listed: null, tool_0001, tool_0002, ...")
	flag.StringVar(&c.Prefix, "prefix", "", "what every tool's name begins with")
	listen := flag.String("listen", "127.0.0.1:0", "address to serve at; port 0 is any free one")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, c, *listen, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// serve serves until ctx ends, and says on out where.
func serve(ctx context.Context, c server.Config, address string, out io.Writer) error {
	s, err := server.New(c)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "listening", l.Addr())
	defer s.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	if err := s.Serve(l); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}
