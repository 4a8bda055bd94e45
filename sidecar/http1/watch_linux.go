package http1

import (
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

const canWatch = true

// watcher tells connections that their client left: one epoll instance that waits for the peers' ends only, at no cost
// per request. Events name connections by an id that is never used again, so that one for a connection that is closed,
// whose descriptor may be another's by then, finds nobody.
type watcher struct {
	epoll *os.File
	raw   syscall.RawConn

	mu    sync.Mutex // guards below
	conns map[uint64]*conn

	ended chan struct{} // closed when run returned
}

// newWatcher starts a watcher's goroutine, which close ends.
func newWatcher() (*watcher, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watching for clients that leave: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // lets Go's own poller wait for it, without a thread
		_ = unix.Close(fd) // it was never used
		return nil, fmt.Errorf("watching for clients that leave: %w", err)
	}
	w := &watcher{
		epoll: os.NewFile(uintptr(fd), "epoll"), conns: make(map[uint64]*conn), ended: make(chan struct{}),
	}
	if w.raw, err = w.epoll.SyscallConn(); err != nil {
		_ = w.epoll.Close() // it was never used
		return nil, fmt.Errorf("watching for clients that leave: %w", err)
	}
	go w.run()
	return w, nil
}

// close ends the watch and waits for its goroutine. It may be called more than once.
func (w *watcher) close() {
	_ = w.epoll.Close() // fails only when closed before
	<-w.ended
}

func (w *watcher) run() {
	defer close(w.ended)
	events := make([]unix.EpollEvent, 128)
	for {
		n := 0
		err := w.raw.Read(func(fd uintptr) bool {
			n, _ = unix.EpollWait(int(fd), events, 0) // fails only when interrupted
			return n > 0
		})
		if err != nil {
			return
		}
		for _, e := range events[:n] {
			if c := w.find(id(e)); c != nil {
				c.left()
			}
		}
	}
}

func (w *watcher) find(id uint64) *conn {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.conns[id]
}

// add begins to watch c. A client that left before is noticed too.
func (w *watcher) add(c *conn) {
	w.mu.Lock()
	w.conns[c.id] = c
	w.mu.Unlock()
	e := unix.EpollEvent{
		Events: unix.EPOLLRDHUP | unix.EPOLLHUP | unix.EPOLLERR | unix.EPOLLET,
		Fd:     int32(uint32(c.id)), Pad: int32(c.id >> 32),
	}
	if err := w.control(c, unix.EPOLL_CTL_ADD, &e); err != nil {
		c.s.Log.Warn("a connection is not watched for its client's leaving", "error", err)
	}
}

// drop ends the watch of a connection that stays open.
func (w *watcher) drop(c *conn) {
	w.remove(c)
	_ = w.control(c, unix.EPOLL_CTL_DEL, nil) // an event for it would find nobody
}

// remove forgets a closed connection; the kernel has.
func (w *watcher) remove(c *conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, c.id)
}

// control changes what is watched. That the watcher or the connection is closed already is no failure.
func (w *watcher) control(c *conn, op int, e *unix.EpollEvent) (err error) {
	_ = w.raw.Control(func(epoll uintptr) {
		_ = c.raw.Control(func(fd uintptr) { err = unix.EpollCtl(int(epoll), op, int(fd), e) })
	})
	return err
}

func id(e unix.EpollEvent) uint64 { return uint64(uint32(e.Pad))<<32 | uint64(uint32(e.Fd)) }

// readNow reads what a socket holds, or fails with EAGAIN.
func readNow(fd uintptr, p []byte) (n int, err error) {
	for {
		if n, err = syscall.Read(int(fd), p); err != syscall.EINTR {
			return n, err
		}
	}
}

// shutdown ends both directions of a connection without closing it.
func shutdown(raw syscall.RawConn) {
	_ = raw.Control(func(fd uintptr) { _ = syscall.Shutdown(int(fd), syscall.SHUT_RDWR) }) // closed before, or by the peer
}
