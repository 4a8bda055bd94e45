package main

import (
	"fmt"
	"maps"
	"net"
	"slices"
)

// addresses are where a mesh listens, all on loopback.
type addresses struct {
	api, xds, planeAdmin string // control plane
	server               string // example server
	mcp, sidecarAdmin    string // sidecar

	held map[string]net.Listener // what keeps them for their programs until release
}

// usualServer is where the example server listens unless that is taken. outrigger.yaml names it.
const usualServer = "127.0.0.1:15100"

// chooseAddresses finds an address for everything: the usual one, or a free one when that is taken or anyFree asks for
// it. taken are the usual ones that were. They stay held until they are released.
func chooseAddresses(anyFree bool) (a *addresses, taken []string, err error) {
	a = &addresses{held: map[string]net.Listener{}}
	for _, want := range []struct {
		to    *string
		usual string
	}{
		{&a.api, "127.0.0.1:7600"}, {&a.xds, "127.0.0.1:7601"}, {&a.planeAdmin, "127.0.0.1:7602"},
		{&a.server, usualServer}, {&a.mcp, "127.0.0.1:15001"}, {&a.sidecarAdmin, "127.0.0.1:15020"},
	} {
		l, err := hold(want.usual, anyFree)
		if err != nil {
			a.releaseAll()
			return nil, nil, err
		}
		*want.to = l.Addr().String()
		a.held[*want.to] = l
		if !anyFree && *want.to != want.usual {
			taken = append(taken, want.usual)
		}
	}
	return a, taken, nil
}

// release gives addresses up for the program that is about to take them. Should somebody else be quicker, it says so.
func (a *addresses) release(each ...string) {
	for _, address := range each {
		if l := a.held[address]; l != nil {
			l.Close()
			delete(a.held, address)
		}
	}
}

func (a *addresses) releaseAll() { a.release(slices.Collect(maps.Keys(a.held))...) }

// hold listens on the usual address, or on a free one.
func hold(usual string, anyFree bool) (net.Listener, error) {
	if !anyFree {
		if l, err := net.Listen("tcp", usual); err == nil {
			return l, nil
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("no free port on 127.0.0.1: %w", err)
	}
	return l, nil
}
