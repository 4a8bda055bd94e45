package store

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
)

// The embedded member's limits and pace. It is alone, so it elects itself: short ticks only make it start sooner. It is up
// in 70 ms (BenchmarkOpen).
const (
	tickMillis     = 20
	electionMillis = 100

	quotaBytes  = 2 << 30 // the backend's size at which writes are refused
	maxTxnKeys  = 4096
	maxOverhead = 2 << 20 // of a transaction beside its keys and values
	historyKept = "1h"    // for watchers that come back
)

// openEmbedded starts a single member in this process and connects to it by function calls.
func (s *Store) openEmbedded(ctx context.Context, o Options) error {
	if err := os.MkdirAll(o.DataDir, 0o700); err != nil {
		return err
	}
	// etcd itself would wait without end for a directory that is in use.
	lock, err := fileutil.TryLockFile(filepath.Join(o.DataDir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, fileutil.ErrLocked) {
		return fmt.Errorf("data directory %s is in use by another process", o.DataDir)
	}
	if err != nil {
		return err
	}
	member, err := embed.StartEtcd(embeddedConfig(o))
	if err != nil {
		lock.Close()
		return fmt.Errorf("start the embedded etcd in %s: %w", o.DataDir, err)
	}
	s.stop = func() {
		member.Close()
		lock.Close()
	}
	select {
	case <-member.Server.ReadyNotify():
		s.client = v3client.New(member.Server)
		return nil
	case <-ctx.Done():
		s.stop()
		return fmt.Errorf("start the embedded etcd: %w", context.Cause(ctx))
	case err := <-member.Err():
		s.stop()
		return fmt.Errorf("the embedded etcd stopped: %v", err)
	}
}

// embeddedConfig is a single member without listeners. Its peer URL is only a name: etcd makes the member's id of it,
// so it must never change.
func embeddedConfig(o Options) *embed.Config {
	self := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	c := embed.NewConfig()
	c.Name = "control-plane"
	c.Dir = filepath.Join(o.DataDir, "etcd")
	c.ListenPeerUrls, c.ListenClientUrls = nil, nil
	c.AdvertisePeerUrls, c.AdvertiseClientUrls = []url.URL{self}, []url.URL{self}
	c.InitialCluster = c.Name + "=" + self.String()
	c.TickMs, c.ElectionMs = tickMillis, electionMillis
	c.QuotaBackendBytes = quotaBytes
	c.MaxRequestBytes, c.MaxTxnOps = maxRequestBytes+maxOverhead, maxTxnKeys
	c.AutoCompactionMode, c.AutoCompactionRetention = embed.CompactorModePeriodic, historyKept
	c.WarningUnaryRequestDuration = time.Second
	c.AuthToken = "" // nobody logs in to a member that listens nowhere
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zapLogger(o.Log))
	return c
}
