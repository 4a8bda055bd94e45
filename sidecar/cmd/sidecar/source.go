package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/config"
	"github.com/outrigger-mesh/outrigger/sidecar/proxy"
)

func newSource(o *options, p *proxy.Proxy, k *kin, reg prometheus.Registerer, log *slog.Logger) (source, error) {
	if o.configFile != "" {
		return fileSource{config.NewFile(config.FileOptions{Path: o.configFile, Labels: o.labels, Target: p, Log: log, Reg: reg}), log}, nil
	}
	c, err := newControlPlane(o, p, reg, log)
	if err == nil {
		c.kin = k
	}
	return c, err
}

// fileSource is a configuration file that SIGHUP reads again.
type fileSource struct {
	*config.File
	log *slog.Logger
}

func (f fileSource) Start() error { return f.Reload() }

func (f fileSource) Hangup() {
	if err := f.Reload(); err != nil {
		f.log.Error("reload refused; what ran before goes on", "error", brief(err))
	}
}

// controlPlane is a configuration delivered over xDS, and the identity that it is asked for with. What is on disk is
// served before either is there.
type controlPlane struct {
	*config.XDS
	o   *options
	log *slog.Logger
	reg prometheus.Registerer
	// refresh applies what runs once more.
	refresh func() []config.Refusal
	// rejoinAfter is how long after a refused join the next one begins.
	rejoinAfter time.Duration
	kin         *kin          // is told of the identity; nil: nobody is
	joined      chan struct{} // closed when identity is set
	ended       chan struct{} // closed when Run's context has ended

	identity *config.Identity
}

func newControlPlane(o *options, p *proxy.Proxy, reg prometheus.Registerer, log *slog.Logger) (*controlPlane, error) {
	c := &controlPlane{o: o, log: log, reg: reg, refresh: p.Refresh, rejoinAfter: 5 * time.Minute, joined: make(chan struct{}), ended: make(chan struct{})}
	if len(o.labels) > 0 && !o.plaintext {
		log.Warn("--label is not looked at: the labels of this sidecar are those of the join token", "label", o.labels)
	}
	if o.joinTokenFile != "" {
		if _, err := os.ReadFile(o.joinTokenFile); err != nil {
			return nil, fmt.Errorf("--join-token-file: %w", err)
		}
	}
	if err := os.MkdirAll(o.stateDir, 0o700); err != nil {
		return nil, fmt.Errorf("--state-dir: %w", err)
	}
	var err error
	c.XDS, err = config.NewXDS(config.XDSOptions{
		Addresses: o.controlPlanes, NodeID: o.nodeID, Version: buildVersion(), Labels: o.labels,
		Credentials: c.credentials, NotAdmitted: c.notAdmitted, Revoked: c.revoked, StateDir: o.stateDir, Target: p, Log: log, Reg: reg,
	})
	return c, err
}

// credentials waits until there is an identity to connect with.
func (c *controlPlane) credentials() credentials.TransportCredentials {
	if c.o.plaintext {
		return insecure.NewCredentials()
	}
	select {
	case <-c.joined:
		return c.identity.Credentials()
	case <-c.ended:
		return credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13}) // for a connection that nobody waits for
	}
}

// notAdmitted passes on that a control plane refuses the identity. Over plaintext there is none.
func (c *controlPlane) notAdmitted() {
	if !c.o.plaintext {
		c.identity.NotAdmitted() // it is there: credentials waited for it
	}
}

// revoked passes on which sidecars were deleted. It is not called before Start.
func (c *controlPlane) revoked(all []*outriggerv1.RevokedSidecar) { c.kin.revoked(all) }

// Start serves what is on disk before anything is asked of a control plane.
func (c *controlPlane) Start() error {
	c.Restore()
	return nil
}

// Hangup reads again what this sidecar has itself, as credentials; a control plane sends its changes unasked.
func (c *controlPlane) Hangup() {
	c.log.Info("credentials are read again")
	for _, r := range c.refresh() {
		c.log.Error("not read again; what ran before goes on", "kind", r.Kind, "name", r.Name, "reason", r.Reason)
	}
}

func (c *controlPlane) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wait sync.WaitGroup
	defer wait.Wait()
	if c.o.plaintext {
		c.log.Warn("talking to the control plane without TLS: anybody on the way can change the configuration")
	} else {
		wait.Go(func() {
			if err := c.join(ctx); err != nil {
				cancel(err)
			}
		})
	}
	wait.Go(func() {
		<-ctx.Done()
		close(c.ended)
	})
	err := c.XDS.Run(ctx)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	cancel(nil)
	return err
}

// join gets the identity and keeps it fresh. That it was refused ends the sidecar, unless it serves what it had before:
// then it tries again, for there may be another token by then.
func (c *controlPlane) join(ctx context.Context) error {
	for {
		id, err := c.openIdentity(ctx)
		if err == nil {
			c.identity = id
			c.kin.joined(id)
			close(c.joined)
			return id.Run(ctx)
		}
		if ctx.Err() != nil || c.Status().Generation == "" {
			return err
		}
		c.log.Error("no identity: the last good configuration goes on, without news from the control plane", "error", err,
			"retry_in", c.rejoinAfter)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(c.rejoinAfter):
		}
	}
}

func (c *controlPlane) openIdentity(ctx context.Context) (*config.Identity, error) {
	return config.OpenIdentity(ctx, config.IdentityOptions{
		Addresses: c.o.controlPlanes, NodeID: c.o.nodeID, StateDir: c.o.stateDir, Log: c.log, Reg: c.reg,
		Token: os.Getenv("OUTRIGGER_JOIN_TOKEN"), TokenFile: c.o.joinTokenFile, Sealing: c.kin.seal,
	})
}
