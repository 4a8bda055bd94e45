// cell-client is a client of the cells against some servers:  cell-client [-2025] mcpgo|gosdk name=url ...
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/outrigger-mesh/outrigger/test/interop/go/cells"
)

func main() {
	legacy := flag.Bool("2025", false, "speak the session-based wire, and not 2026-07-28")
	flag.Parse()
	open := map[string]func(bool, *cells.Heard, *cells.Tap) cells.Client{"mcpgo": newMCPGo, "gosdk": newGoSDK}[flag.Arg(0)]
	if open == nil || flag.NArg() < 2 {
		fmt.Fprintln(os.Stderr, "usage: cell-client [-2025] mcpgo|gosdk name=url ...")
		os.Exit(2)
	}
	client := func(h *cells.Heard, t *cells.Tap) cells.Client { return open(!*legacy, h, t) }
	if !cells.Run(fmt.Sprint(flag.Arg(0), *legacy), !*legacy, client, flag.Args()[1:]) {
		os.Exit(1)
	}
}

// version is the one that a client speaks.
func version(stateless bool) string {
	if stateless {
		return "2026-07-28"
	}
	return "2025-11-25"
}
