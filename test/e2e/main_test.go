// Package e2e tests the programs as their users run them: real processes of the sidecar, the control plane and rigctl,
// between real MCP clients and servers, on loopback.
//
// The programs are built once per run, with the race detector when the tests have it. A process that a test starts is
// in a process group of its own, ends with the test, and shows its log when the test failed. Waits are for conditions,
// and all of them end by patience.
package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"
)

// patience bounds every wait for what should be prompt.
const patience = 30 * time.Second

// peerEnv makes the test binary be an MCP server instead, on the address that it holds.
const peerEnv = "E2E_PEER_ADDRESS"

// stdioEnv makes the test binary be a workshop on its standard input and output instead.
const stdioEnv = "E2E_PEER_STDIO"

// Where the programs are: those under test, and those built as a release is, to be measured.
var programs, releases string

func TestMain(m *testing.M) {
	if address := os.Getenv(peerEnv); address != "" {
		servePeer(address)
		return
	}
	if os.Getenv(stdioEnv) != "" {
		_ = newWorkshop("pipe", versionLegacy).Run(context.Background(), &sdk.StdioTransport{}) // it ends with its input
		return
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	programs, releases = filepath.Join(dir, "programs"), filepath.Join(dir, "releases")
	if err := build(releases, "CGO_ENABLED=0", "-trimpath"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if !raceDetector {
		programs = releases
	} else if err := build(programs, "CGO_ENABLED=1", "-race"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	status := m.Run()
	if err := goleak.Find(); err != nil && status == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return status
}

// build puts the three programs in a directory.
func build(dir, env, flag string) error {
	const module = "github.com/outrigger-mesh/outrigger/"
	c := exec.Command("go", "build", flag, "-o", dir+"/",
		module+"sidecar/cmd/sidecar", module+"controlplane/cmd/controlplane", module+"controlplane/cmd/rigctl")
	c.Env = append(os.Environ(), env)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w\n%s", c.Args, err, out)
	}
	return nil
}
