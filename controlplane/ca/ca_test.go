package ca

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/outrigger-mesh/outrigger/controlplane/store"
	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is a time that tests move.
type clock struct{ offset atomic.Int64 }

func (c *clock) now() time.Time          { return time.Now().Add(time.Duration(c.offset.Load())) }
func (c *clock) advance(d time.Duration) { c.offset.Add(int64(d)) }

// world is a store with one authority on it, served over TLS.
type world struct {
	*Authority
	t       *testing.T
	clock   *clock
	address string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, clock: new(clock)}
	w.Authority = w.replica(openStore(t, t.TempDir()))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.Creds(credentials.NewTLS(w.ServerTLS())))
	outriggerv1.RegisterIdentityServiceServer(s, w.Authority)
	go s.Serve(l)
	t.Cleanup(s.Stop)
	w.address = l.Addr().String()
	return w
}

// replica opens another authority on a store.
func (w *world) replica(s *store.Store) *Authority {
	w.t.Helper()
	a, err := Open(w.t.Context(), s, Options{
		ServerNames: []string{"rig.example", "10.1.2.3"}, Now: w.clock.now, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return a
}

func openStore(t *testing.T, dir string) *store.Store {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s, err := store.Open(ctx, store.Options{DataDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// token makes a join token with one label.
func (w *world) token(uses int32) string {
	w.t.Helper()
	text, _, err := w.Create(w.t.Context(), map[string]string{"app": "demo"}, time.Hour, uses)
	if err != nil {
		w.t.Fatal(err)
	}
	return text
}

// issue asks for a certificate on a new connection, presenting one if it has it, and returns the new one.
func (w *world) issue(nodeID, token string, present *tls.Certificate) (*tls.Certificate, error) {
	w.t.Helper()
	conn := w.dial(present)
	defer conn.Close()
	return w.issueOn(conn, nodeID, token)
}

// dial connects, presenting a certificate if there is one.
func (w *world) dial(present *tls.Certificate) *grpc.ClientConn {
	w.t.Helper()
	config := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "rig.example", Time: w.clock.now}
	config.RootCAs.AddCert(w.root)
	if present != nil {
		config.Certificates = []tls.Certificate{*present}
	}
	conn, err := grpc.NewClient(w.address, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		w.t.Fatal(err)
	}
	return conn
}

func (w *world) issueOn(conn *grpc.ClientConn, nodeID, token string) (*tls.Certificate, error) {
	w.t.Helper()
	key, csr := newRequest(w.t)
	ctx, cancel := context.WithTimeout(w.t.Context(), 10*time.Second)
	defer cancel()
	res, err := outriggerv1.NewIdentityServiceClient(conn).IssueCertificate(ctx, &outriggerv1.IssueCertificateRequest{
		Csr: csr, NodeId: nodeID, JoinToken: token,
	})
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(res.Chain[0])
	if err != nil {
		w.t.Fatal(err)
	}
	return &tls.Certificate{Certificate: res.Chain, PrivateKey: key, Leaf: leaf}, nil
}

func newRequest(t testing.TB) (*ecdsa.PrivateKey, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return key, csr
}

func wantCode(t *testing.T, err error, want codes.Code, text string) {
	t.Helper()
	if status.Code(err) != want || (err != nil && !strings.Contains(err.Error(), text)) {
		t.Errorf("got %v, want %v with %q", err, want, text)
	}
}

func TestASidecarJoinsOnceAndRenewsByItsCertificate(t *testing.T) {
	w := newWorld(t)
	token := w.token(1)
	first, err := w.issue("team/demo-1", token, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := first.Leaf.URIs[0].String(), "spiffe://outrigger/sidecar/team/demo-1"; got != want {
		t.Errorf("URI SAN %q, want %q", got, want)
	}
	if got := time.Until(first.Leaf.NotAfter).Round(time.Minute); got != 24*time.Hour {
		t.Errorf("valid for %v, want 24h", got)
	}
	w.clock.advance(16 * time.Hour)
	second, err := w.issue("team/demo-1", "", first)
	if err != nil {
		t.Fatalf("renewal: %v", err)
	}
	r, _, err := w.record(t.Context(), "team/demo-1")
	if err != nil {
		t.Fatal(err)
	}
	if r.Labels["app"] != "demo" || !r.Expires.Truncate(time.Minute).Equal(second.Leaf.NotAfter.Truncate(time.Minute)) {
		t.Errorf("record %+v, want label app=demo and expiry %v", r, second.Leaf.NotAfter)
	}
	_, err = w.issue("team/demo-1", token, nil)
	wantCode(t, err, codes.Unauthenticated, "expired at")
}

func TestBadTokensAreRefused(t *testing.T) {
	w := newWorld(t)
	spent, expired := w.token(1), w.token(1)
	if _, err := w.issue("first", spent, nil); err != nil {
		t.Fatal(err)
	}
	w.clock.advance(59 * time.Minute)
	good := w.token(1)
	w.clock.advance(2 * time.Minute)
	parts := strings.Split(good, "_")
	for _, tc := range []struct{ name, token, want string }{
		{"no token at all", "hunter2", "not of the form"},
		{"unknown id", strings.Replace(good, parts[1], "0123456789abcdef", 1), "unknown"},
		{"wrong secret", strings.Replace(good, parts[2], strings.Repeat("ab", 32), 1), "unknown"},
		{"another authority's", strings.Replace(good, parts[3], strings.Repeat("cd", 32), 1), "another control plane"},
		{"expired", expired, "expired at"},
		{"cut short", good[:len(good)-70], "not of the form"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := w.issue("second", tc.token, nil)
			wantCode(t, err, codes.Unauthenticated, tc.want)
		})
	}
	if _, err := w.issue("second", good, nil); err != nil {
		t.Errorf("the good token: %v", err)
	}
	_, err := w.issue("third", good, nil)
	wantCode(t, err, codes.Unauthenticated, "spent")
}

func TestATokenIsNeverUsedTooOften(t *testing.T) {
	w := newWorld(t)
	token := w.token(5)
	other := w.replica(w.store)
	_, csr := newRequest(t)
	var joined atomic.Int32
	var all sync.WaitGroup
	for i := range 24 {
		a := []*Authority{w.Authority, other}[i%2]
		all.Go(func() {
			req := &outriggerv1.IssueCertificateRequest{Csr: csr, NodeId: fmt.Sprint("node-", i), JoinToken: token}
			_, err := a.IssueCertificate(t.Context(), req)
			switch status.Code(err) {
			case codes.OK:
				joined.Add(1)
			case codes.Unauthenticated, codes.ResourceExhausted:
			default:
				t.Errorf("node-%d: %v", i, err)
			}
		})
	}
	all.Wait()
	if joined.Load() != 5 {
		t.Errorf("%d sidecars joined by a token for 5", joined.Load())
	}
	if entries, _, err := w.store.List(t.Context(), sidecarPrefix); err != nil || len(entries) != 5 {
		t.Errorf("%d records (%v), want 5", len(entries), err)
	}
}

func TestALostAnswerCanBeAskedForAgain(t *testing.T) {
	w := newWorld(t)
	token := w.token(1)
	_, csr := newRequest(t)
	req := &outriggerv1.IssueCertificateRequest{Csr: csr, NodeId: "demo", JoinToken: token}
	for range 3 {
		if _, err := w.IssueCertificate(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	_, req.Csr = newRequest(t)
	_, err := w.IssueCertificate(t.Context(), req)
	wantCode(t, err, codes.Unauthenticated, "spent")
}

func TestOnlyTheSameTokenAdmitsALiveNodeAgain(t *testing.T) {
	w := newWorld(t)
	token := w.token(2)
	if _, err := w.issue("demo", token, nil); err != nil {
		t.Fatal(err)
	}
	_, err := w.issue("demo", w.token(1), nil)
	wantCode(t, err, codes.PermissionDenied, "another join token admitted")
	if _, err := w.issue("demo", token, nil); err != nil {
		t.Errorf("its own token again: %v", err)
	}
	w.clock.advance(25 * time.Hour)
	if _, err := w.issue("demo", w.token(1), nil); err != nil {
		t.Errorf("another token once the certificate has expired: %v", err)
	}
}

func TestRenewalNeedsTheSameNodeAndItsRecord(t *testing.T) {
	w := newWorld(t)
	mine, err := w.issue("mine", w.token(1), nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.issue("yours", "", mine)
	wantCode(t, err, codes.PermissionDenied, `of "mine", not of "yours"`)
	_, err = w.issue("mine", "", nil)
	wantCode(t, err, codes.Unauthenticated, "client certificate is required")

	if _, err := w.store.Apply(t.Context(), []store.Write{{Key: sidecarPrefix + "mine", Delete: true}}); err != nil {
		t.Fatal(err)
	}
	_, err = w.issue("mine", "", mine)
	wantCode(t, err, codes.PermissionDenied, "not admitted")
}

func TestAnOpenConnectionDoesNotOutliveItsCertificate(t *testing.T) {
	w := newWorld(t)
	mine, err := w.issue("mine", w.token(1), nil)
	if err != nil {
		t.Fatal(err)
	}
	conn := w.dial(mine)
	defer conn.Close()
	if _, err := w.issueOn(conn, "mine", ""); err != nil {
		t.Fatal(err)
	}
	w.clock.advance(25 * time.Hour)
	_, err = w.issueOn(conn, "mine", "")
	wantCode(t, err, codes.Unauthenticated, "has expired")
}

func TestBadRequestsAreRefusedBeforeATokenIsUsed(t *testing.T) {
	w := newWorld(t)
	token := w.token(1)
	_, csr := newRequest(t)
	forged := append([]byte{}, csr...)
	forged[len(forged)-1] ^= 1
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	rsaCSR, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, node, want string
		csr              []byte
	}{
		{"no node id", "", "node_id", csr},
		{"node id with a space", "a b", "node_id", csr},
		{"node id too long", strings.Repeat("a", 129), "node_id", csr},
		{"no csr", "demo", "csr", nil},
		{"csr of nonsense", "demo", "not a PKCS#10", []byte("nonsense")},
		{"csr with a bad signature", "demo", "signature", forged},
		{"csr of an RSA key", "demo", "expected a P-256", rsaCSR},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := w.IssueCertificate(t.Context(), &outriggerv1.IssueCertificateRequest{
				Csr: tc.csr, NodeId: tc.node, JoinToken: token,
			})
			wantCode(t, err, codes.InvalidArgument, tc.want)
		})
	}
	if _, err := w.issue("demo", token, nil); err != nil {
		t.Errorf("the token's one use was gone: %v", err)
	}
}

func TestReplicasAgreeOnOneRootAndKeepItOverRestarts(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	w := &world{t: t, clock: new(clock)}
	var all sync.WaitGroup
	var mu sync.Mutex
	prints := map[string]bool{}
	for range 4 {
		all.Go(func() {
			a, err := Open(t.Context(), s, Options{Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			prints[a.fingerprint] = true
		})
	}
	all.Wait()
	w.Authority = w.replica(s)
	token := w.token(1)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	w.Authority = w.replica(openStore(t, dir))
	prints[w.fingerprint] = true
	if len(prints) != 1 {
		t.Errorf("%d roots, want 1", len(prints))
	}
	_, csr := newRequest(t)
	req := &outriggerv1.IssueCertificateRequest{Csr: csr, NodeId: "demo", JoinToken: token}
	if _, err := w.IssueCertificate(t.Context(), req); err != nil {
		t.Errorf("a token made before the restart: %v", err)
	}
}

func TestTheServerCertificateIsRenewedAtTwoThirds(t *testing.T) {
	w := newWorld(t)
	first, _ := w.GetCertificate(nil)
	pool := x509.NewCertPool()
	pool.AddCert(w.root)
	for _, name := range []string{"localhost", "127.0.0.1", "::1", "rig.example", "10.1.2.3"} {
		if _, err := first.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: pool}); err != nil {
			t.Errorf("dialled as %s: %v", name, err)
		}
	}
	sum := sha256.Sum256(first.Certificate[len(first.Certificate)-1])
	if got := hex.EncodeToString(sum[:]); !strings.HasSuffix(w.token(1), "_"+got) {
		t.Error("the presented chain does not end with the root of a token's fingerprint")
	}
	w.clock.advance(19 * 24 * time.Hour)
	if err := w.upkeep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if second, _ := w.GetCertificate(nil); second != first {
		t.Error("renewed after 19 of 30 days")
	}
	w.clock.advance(36 * time.Hour)
	if err := w.upkeep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if second, _ := w.GetCertificate(nil); second == first {
		t.Error("not renewed after 20.5 of 30 days")
	}
}

func TestUpkeepRemovesOnlyWhatHasExpired(t *testing.T) {
	w := newWorld(t)
	if _, err := w.issue("old", w.token(1), nil); err != nil {
		t.Fatal(err)
	}
	w.clock.advance(25 * time.Hour)
	if _, err := w.issue("new", w.token(2), nil); err != nil {
		t.Fatal(err)
	}
	if err := w.upkeep(t.Context()); err != nil {
		t.Fatal(err)
	}
	tokens, _, err := w.store.List(t.Context(), tokenPrefix)
	if err != nil || len(tokens) != 1 {
		t.Errorf("%d tokens left (%v), want 1", len(tokens), err)
	}
	records, _, err := w.store.List(t.Context(), sidecarPrefix)
	if err != nil || len(records) != 1 || records[0].Key != sidecarPrefix+"new" {
		t.Errorf("records left: %v (%v), want only new", records, err)
	}
}

func TestTheStoreNeverHoldsASecret(t *testing.T) {
	w := newWorld(t)
	secret := strings.Split(w.token(1), "_")[2]
	entries, _, err := w.store.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.Contains(string(e.Value), secret) {
			t.Errorf("%s holds a token's secret", e.Key)
		}
	}
}

func TestGuessersAreSlowedAndForgiven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := newThrottle()
		for i := range failureBurst {
			if !th.failed("a") {
				t.Fatalf("refused after %d failures, want %d", i, failureBurst)
			}
		}
		if a, b := th.failed("a"), th.failed("b"); a || !b {
			t.Errorf("a allowed %v, b allowed %v; want only b", a, b)
		}
		time.Sleep(failureEvery)
		if !th.failed("a") {
			t.Errorf("still refused after %v", failureEvery)
		}
	})
}

func TestAGoodTokenIsNotRefusedForBadOnesOfTheSameAddress(t *testing.T) {
	w := newWorld(t)
	good := w.token(1)
	bad := strings.Replace(good, strings.Split(good, "_")[2], strings.Repeat("ab", 32), 1)
	for range failureBurst {
		_, err := w.issue("guesser", bad, nil)
		wantCode(t, err, codes.Unauthenticated, "unknown")
	}
	_, err := w.issue("guesser", bad, nil)
	wantCode(t, err, codes.ResourceExhausted, "too many bad join tokens")
	if _, err := w.issue("second", good, nil); err != nil {
		t.Errorf("the good token: %v", err)
	}
}

func TestTheThrottleRemembersABoundedNumberOfAddresses(t *testing.T) {
	th := newThrottle()
	for i := range maxHosts + 100 {
		th.failed(fmt.Sprint(i))
	}
	if len(th.hosts) > maxHosts {
		t.Errorf("%d addresses remembered, want at most %d", len(th.hosts), maxHosts)
	}
}

func FuzzParseToken(f *testing.F) {
	a := &Authority{fingerprint: strings.Repeat("ab", 32)}
	f.Add("rig1_0123456789abcdef_" + strings.Repeat("cd", 32) + "_" + a.fingerprint)
	f.Add("rig1___")
	f.Fuzz(func(t *testing.T, text string) {
		id, secret, err := a.parseToken(text)
		if err != nil {
			return
		}
		if again := strings.Join([]string{tokenVersion, id, secret, a.fingerprint}, "_"); again != text {
			t.Errorf("%q parsed as %q", text, again)
		}
	})
}

func FuzzCheckRequest(f *testing.F) {
	_, csr := newRequest(f)
	f.Add(csr, "demo", "")
	f.Fuzz(func(t *testing.T, csr []byte, node, token string) {
		key, err := checkRequest(&outriggerv1.IssueCertificateRequest{Csr: csr, NodeId: node, JoinToken: token})
		if (key == nil) == (err == nil) {
			t.Errorf("key %v with error %v", key, err)
		}
		if err == nil && !ValidNodeID(node) {
			t.Errorf("node id %q let through", node)
		}
	})
}

func TestARevokedSidecarIsNotIdentifiedAndDoesNotRenew(t *testing.T) {
	w := newWorld(t)
	text := w.token(2)
	certificate, err := w.issue("team/n", text, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, unknown := range []string{"other", "", "team", "not an id"} {
		if found, err := w.Revoke(t.Context(), unknown); found || err != nil {
			t.Errorf("Revoke(%q) = %v, %v; want false", unknown, found, err)
		}
	}
	if found, err := w.Revoke(t.Context(), "team/n"); !found || err != nil {
		t.Fatalf("Revoke = %v, %v; want true", found, err)
	}
	if _, err := w.issue("team/n", "", certificate); status.Code(err) != codes.PermissionDenied {
		t.Errorf("renewal: %v, want PermissionDenied", err)
	}
	if found, err := w.Revoke(t.Context(), "team/n"); found || err != nil {
		t.Errorf("a second Revoke = %v, %v; want false", found, err)
	}
	if _, err := w.issue("team/n", text, nil); err != nil {
		t.Errorf("joining anew with a use that is left: %v", err)
	}
}

// TestEveryReplicaHearsOfADeletedRecord holds also for what was deleted while a replica did not watch.
func TestEveryReplicaHearsOfADeletedRecord(t *testing.T) {
	w := newWorld(t)
	other := w.replica(w.store)
	for _, id := range []string{"a", "team/b", "c"} {
		if _, err := w.issue(id, w.token(1), nil); err != nil {
			t.Fatal(err)
		}
	}
	heard := make(chan string, 3)
	expect := func(want string) {
		t.Helper()
		select {
		case got := <-heard:
			if got != want {
				t.Errorf("heard of %q, want %q", got, want)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%q was not heard of", want)
		}
	}
	known := map[string]bool{sidecarPrefix + "gone": true, sidecarPrefix + "c": true}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		other.followRecords(ctx, known, func(id string) { heard <- id }) // ends with ctx
	}()
	expect("gone")
	for _, id := range []string{"team/b", "a"} {
		if _, err := w.Revoke(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		expect(id)
	}
	cancel()
	<-done
}
