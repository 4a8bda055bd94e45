package main

import (
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc/credentials"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/config"
)

// startEtcd runs a member as an operator's own etcd and returns its endpoint.
func startEtcd(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "etcd") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	client := url.URL{Scheme: "unix", Path: filepath.Join(dir, "client:0")}
	peer := url.URL{Scheme: "unix", Path: filepath.Join(dir, "peer:0")}
	c := embed.NewConfig()
	c.Dir, c.LogLevel = filepath.Join(dir, "data"), "error"
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	c.InitialCluster = c.Name + "=" + peer.String()
	member, err := embed.StartEtcd(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(member.Close)
	select {
	case <-member.Server.ReadyNotify():
	case <-time.After(patience):
		t.Fatal("etcd was not ready")
	}
	return client.String()
}

// TestADeletedSidecarIsGoneFromEveryReplica deletes at the replica to which the sidecar is not connected. Those that are
// left hear of it from either.
func TestADeletedSidecarIsGoneFromEveryReplica(t *testing.T) {
	etcd := startEtcd(t)
	first := start(t, filepath.Join(t.TempDir(), "first"), "--etcd", etcd)
	second := start(t, filepath.Join(t.TempDir(), "second"), "--etcd", etcd)
	c := second.client("http", http.DefaultTransport)
	token, err := c.CreateJoinToken(t.Context(), &outriggerv1.CreateJoinTokenRequest{MaxUses: 3})
	if err != nil {
		t.Fatal(err)
	}
	var atFirst, atSecond target
	first.sidecar("one", token.Token, &atFirst)
	second.sidecar("two", token.Token, &atSecond)
	x := first.sidecar("team/demo", token.Token, &target{})
	eventually(t, "connection", func() bool { return x.Status().Connected })
	if _, err := c.DeleteSidecar(t.Context(), &outriggerv1.DeleteSidecarRequest{Id: "team/demo"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "end of the stream", func() bool { return !x.Status().Connected })
	for _, tg := range []*target{&atFirst, &atSecond} {
		eventually(t, "news of it at the others", func() bool { return slices.Equal(tg.gone(), []string{"team/demo"}) })
	}
	list, err := first.client("http", http.DefaultTransport).ListSidecars(t.Context(), &outriggerv1.ListSidecarsRequest{})
	if err != nil || len(list.Sidecars) != 1 || list.Sidecars[0].Id != "one" {
		t.Errorf("the replica that it was connected to lists %v (%v), want the other alone", list, err)
	}
	first.stop()
	second.stop()
}

func TestReplicasOverOneClusterAreOneControlPlane(t *testing.T) {
	etcd := startEtcd(t)
	first := start(t, filepath.Join(t.TempDir(), "first"), "--etcd", etcd)
	second := start(t, filepath.Join(t.TempDir(), "second"), "--etcd", etcd)
	c := first.client("http", http.DefaultTransport)
	if _, err := c.Apply(t.Context(), &outriggerv1.ApplyRequest{Resources: demo(t)}); err != nil {
		t.Fatal(err)
	}
	token, err := c.CreateJoinToken(t.Context(), &outriggerv1.CreateJoinTokenRequest{Labels: map[string]string{"app": "demo"}})
	if err != nil {
		t.Fatal(err)
	}
	// It joins at the first, and follows whichever it dials; then that one stops.
	id, err := config.OpenIdentity(t.Context(), config.IdentityOptions{
		Addresses: []string{first.started.XDS}, NodeID: "demo", Token: token.Token, StateDir: t.TempDir(),
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	tg := &target{}
	first.follow(config.XDSOptions{
		Addresses: []string{second.started.XDS, first.started.XDS}, NodeID: "demo", Target: tg,
		Credentials: func() credentials.TransportCredentials { return id.Credentials() },
	})
	eventually(t, "configuration", func() bool { return len(tg.running()) == 3 })
	left, gone := first, second
	if _, metrics := first.get("/metrics"); strings.Contains(metrics, "connected_sidecars 1") {
		left, gone = second, first
	}
	gone.stop()
	if _, err := left.client("http", http.DefaultTransport).Delete(t.Context(), &outriggerv1.DeleteRequest{Kind: "Binding", Name: "three"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "removal of three by the replica that is left", func() bool {
		return slices.Equal(tg.running(), []string{"one", "two"})
	})
	left.stop()
}
