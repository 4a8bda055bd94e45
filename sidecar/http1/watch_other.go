//go:build !linux

package http1

// canWatch is false where nothing tells that a client left: net/http, which reads ahead for that, serves everything.
const canWatch = false

type watcher struct{}

func newWatcher() (*watcher, error) { return &watcher{}, nil }

func (*watcher) close()       {}
func (*watcher) add(*conn)    {}
func (*watcher) drop(*conn)   {}
func (*watcher) remove(*conn) {}
