package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/outrigger-mesh/outrigger/sidecar/config"
)

func newSource(o *options, target config.Target, reg prometheus.Registerer, log *slog.Logger) (source, error) {
	if o.configFile != "" {
		return fileSource{config.NewFile(config.FileOptions{Path: o.configFile, Labels: o.labels, Target: target, Log: log}), log}, nil
	}
	return newControlPlane(o, target, reg, log)
}

// fileSource is a configuration file that SIGHUP reads again.
type fileSource struct {
	*config.File
	log *slog.Logger
}

func (f fileSource) Run(ctx context.Context) error {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wait sync.WaitGroup
	defer wait.Wait()
	wait.Go(func() {
		for {
			select {
			case <-hup:
				if err := f.Reload(); err != nil {
					f.log.Error("reload refused; what ran before goes on", "error", err)
				}
			case <-ctx.Done():
				return
			}
		}
	})
	err := f.File.Run(ctx)
	cancel()
	return err
}

// controlPlane is a configuration delivered over xDS, and the identity that it is asked for with. What is on disk is
// served before either is there.
type controlPlane struct {
	*config.XDS
	o      *options
	log    *slog.Logger
	token  string
	joined chan struct{} // closed when identity is set
	ended  chan struct{} // closed when Run's context has ended

	identity *config.Identity
}

func newControlPlane(o *options, target config.Target, reg prometheus.Registerer, log *slog.Logger) (*controlPlane, error) {
	c := &controlPlane{o: o, log: log, joined: make(chan struct{}), ended: make(chan struct{})}
	var err error
	if c.token, err = joinToken(o); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.stateDir, 0o700); err != nil {
		return nil, fmt.Errorf("--state-dir: %w", err)
	}
	c.XDS, err = config.NewXDS(config.XDSOptions{
		Addresses: o.controlPlanes, NodeID: o.nodeID, Version: buildVersion(), Labels: o.labels,
		Credentials: c.credentials, StateDir: o.stateDir, Target: target, Log: log, Reg: reg,
	})
	return c, err
}

func joinToken(o *options) (string, error) {
	if o.joinTokenFile == "" {
		return os.Getenv("OUTRIGGER_JOIN_TOKEN"), nil
	}
	b, err := os.ReadFile(o.joinTokenFile)
	if err != nil {
		return "", fmt.Errorf("--join-token-file: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
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

// join gets the identity and keeps it fresh. That it was refused ends the sidecar, unless it serves what it had before.
func (c *controlPlane) join(ctx context.Context) error {
	id, err := config.OpenIdentity(ctx, config.IdentityOptions{
		Addresses: c.o.controlPlanes, NodeID: c.o.nodeID, Token: c.token, StateDir: c.o.stateDir, Log: c.log,
	})
	if err != nil {
		if ctx.Err() == nil && c.Status().Generation != "" {
			c.log.Error("no identity: the last good configuration goes on, without news from the control plane", "error", err)
			return nil
		}
		return err
	}
	c.identity = id
	close(c.joined)
	return id.Run(ctx)
}
