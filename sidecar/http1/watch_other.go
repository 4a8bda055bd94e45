//go:build !linux

package http1

import (
	"net"
	"syscall"
)

// canWatch is false where nothing tells that a client left: net/http, which reads ahead for that, serves everything.
const canWatch = false

type watcher struct{}

func newWatcher() (*watcher, error) { return &watcher{}, nil }

func (*watcher) close()       {}
func (*watcher) add(*conn)    {}
func (*watcher) drop(*conn)   {}
func (*watcher) remove(*conn) {}

func readNow(uintptr, []byte) (int, error) { return 0, net.ErrClosed }
func shutdown(syscall.RawConn)             {}
