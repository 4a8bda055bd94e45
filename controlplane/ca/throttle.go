package ca

import (
	"context"
	"net"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/peer"
)

// Bad join tokens that one address is told about: a burst, then one every few seconds. Guessing a secret is hopeless
// anyway; this bounds what guessers write to the log. A good token is never refused for the bad ones of others behind
// the same address.
const (
	failureBurst = 10
	failureEvery = 6 * time.Second
	maxHosts     = 4096 // addresses remembered
)

// throttle counts failures by address.
type throttle struct {
	mu    sync.Mutex // guards below
	hosts map[string]*rate.Limiter
}

func newThrottle() *throttle { return &throttle{hosts: map[string]*rate.Limiter{}} }

// failed counts a failure, and reports whether the address had one left. When too many addresses are remembered, those
// that have recovered are forgotten, and any one if none has.
func (t *throttle) failed(host string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.hosts[host]
	if l == nil {
		if len(t.hosts) >= maxHosts {
			t.forgetLocked()
		}
		l = rate.NewLimiter(rate.Every(failureEvery), failureBurst)
		t.hosts[host] = l
	}
	return l.Allow()
}

func (t *throttle) forgetLocked() {
	var last string
	for host, l := range t.hosts {
		last = host
		if l.Tokens() >= failureBurst {
			delete(t.hosts, host)
		}
	}
	delete(t.hosts, last)
}

// peerHost is the address of a call's peer, without its port.
func peerHost(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	host, _, err := net.SplitHostPort(p.Addr.String())
	if err != nil {
		return p.Addr.String()
	}
	return host
}
