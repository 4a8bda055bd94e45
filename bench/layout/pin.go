package layout

import (
	"fmt"
	"os/exec"
	"runtime"
)

// Pins say which cores each kind of process runs on, as taskset takes them. Empty: any.
type Pins struct {
	Proxy string // what is measured: nginx, sidecars, peers
	Rest  string // everything else
}

// PinsHere are the pins for this machine: none without taskset.
func PinsHere() Pins {
	if _, err := exec.LookPath("taskset"); err != nil {
		return Pins{}
	}
	return pinsFor(runtime.NumCPU())
}

// pinsFor gives proxies the last core and everything else the others; nothing is pinned where there is only one.
func pinsFor(cores int) Pins {
	switch {
	case cores < 2:
		return Pins{}
	case cores == 2:
		return Pins{Proxy: "1", Rest: "0"}
	}
	return Pins{Proxy: fmt.Sprint(cores - 1), Rest: fmt.Sprintf("0-%d", cores-2)}
}

// pinned is a command line on some cores.
func pinned(cores string, command []string) []string {
	if cores == "" {
		return command
	}
	return append([]string{"taskset", "-c", cores}, command...)
}
