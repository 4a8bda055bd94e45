package config

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// authority is a small certificate authority over real TLS, with one token.
type authority struct {
	outriggerv1.UnimplementedIdentityServiceServer
	t       *testing.T
	root    *x509.Certificate
	key     *ecdsa.PrivateKey
	address string
	token   string
	life    time.Duration

	renewed chan struct{}
	ring    *outriggerv1.KeyRing // given out with certificates

	mu    sync.Mutex // guards below
	spent bool
	keyOf [sha256.Size]byte // that the token was spent for
	fail  int               // requests to answer with UNAVAILABLE
	lose  int               // answers to lose on their way
}

func newAuthority(t *testing.T, life time.Duration, names ...string) *authority {
	a := &authority{t: t, life: life, renewed: make(chan struct{}, 100)}
	a.key, _ = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	a.root = a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "root"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, nil, a.key, time.Hour)
	sum := sha256.Sum256(a.root.Raw)
	a.token = "rig1_00ff_0123456789abcdef_" + hex.EncodeToString(sum[:])

	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	leaf := &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	for _, n := range names {
		if ip := net.ParseIP(n); ip != nil {
			leaf.IPAddresses = append(leaf.IPAddresses, ip)
		} else {
			leaf.DNSNames = append(leaf.DNSNames, n)
		}
	}
	signed := a.sign(leaf, a.root, key, time.Hour)
	clients := x509.NewCertPool()
	clients.AddCert(a.root)
	a.serve(&tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{{Certificate: [][]byte{signed.Raw, a.root.Raw}, PrivateKey: key}},
		ClientCAs:    clients, ClientAuth: tls.VerifyClientCertIfGiven,
	})
	return a
}

func (a *authority) serve(config *tls.Config) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		a.t.Fatal(err)
	}
	a.address = l.Addr().String()
	s := grpc.NewServer(grpc.Creds(credentials.NewTLS(config)))
	outriggerv1.RegisterIdentityServiceServer(s, a)
	go func() { _ = s.Serve(l) }()
	a.t.Cleanup(s.Stop)
}

// sign signs a certificate for a key, by the root or, without one, by itself.
func (a *authority) sign(c, parent *x509.Certificate, key *ecdsa.PrivateKey, life time.Duration) *x509.Certificate {
	return a.signPublic(c, parent, key.Public(), life)
}

func (a *authority) signPublic(c, parent *x509.Certificate, public any, life time.Duration) *x509.Certificate {
	c.SerialNumber, _ = rand.Int(rand.Reader, big.NewInt(1<<62))
	c.NotBefore, c.NotAfter = time.Now().Add(-5*time.Minute), time.Now().Add(life)
	if parent == nil {
		parent = c
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, public, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	out, _ := x509.ParseCertificate(der)
	return out
}

func (a *authority) IssueCertificate(ctx context.Context, r *outriggerv1.IssueCertificateRequest) (*outriggerv1.IssueCertificateResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fail > 0 {
		a.fail--
		return nil, status.Error(codes.Unavailable, "later")
	}
	p, _ := peer.FromContext(ctx)
	chains := p.AuthInfo.(credentials.TLSInfo).State.VerifiedChains
	switch {
	case r.JoinToken == a.token && (!a.spent || a.keyOf == keyOf(r.Csr)):
		a.spent, a.keyOf = true, keyOf(r.Csr)
		if a.lose > 0 {
			a.lose--
			return nil, status.Error(codes.Unavailable, "lost")
		}
	case r.JoinToken == "" && len(chains) > 0 && strings.HasSuffix(chains[0][0].URIs[0].Path, r.NodeId):
		a.renewed <- struct{}{}
	default:
		return nil, status.Error(codes.Unauthenticated, "bad join token: spent")
	}
	csr, err := x509.ParseCertificateRequest(r.Csr)
	if err != nil || csr.CheckSignature() != nil {
		return nil, status.Error(codes.InvalidArgument, "csr")
	}
	leaf := a.signPublic(&x509.Certificate{
		URIs:        []*url.URL{{Scheme: "spiffe", Host: "outrigger", Path: "/sidecar/" + r.NodeId}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, a.root, csr.PublicKey, a.life)
	return &outriggerv1.IssueCertificateResponse{
		Chain: [][]byte{leaf.Raw}, Authorities: [][]byte{a.root.Raw}, KeyRing: a.ring,
	}, nil
}

func keyOf(csr []byte) [sha256.Size]byte {
	r, err := x509.ParseCertificateRequest(csr)
	if err != nil {
		return [sha256.Size]byte{}
	}
	return sha256.Sum256(r.RawSubjectPublicKeyInfo)
}

func (a *authority) options(dir string) IdentityOptions {
	return IdentityOptions{Addresses: []string{a.address}, NodeID: "ns/pod", Token: a.token, StateDir: dir, Log: slog.New(slog.DiscardHandler)}
}

func TestASidecarJoinsOnceAndKeepsItsIdentity(t *testing.T) {
	a, dir := newAuthority(t, time.Hour, "127.0.0.1"), filepath.Join(t.TempDir(), "state")
	id, err := OpenIdentity(t.Context(), a.options(dir))
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, "identity.pem"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("identity.pem: %v, %v", info, err)
	}
	again, err := OpenIdentity(t.Context(), IdentityOptions{
		Addresses: []string{a.address}, NodeID: "ns/pod", StateDir: dir, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil || !again.Expires().Equal(id.Expires()) {
		t.Errorf("opened again: %v", err)
	}
	o := a.options(dir)
	o.NodeID = "ns/other"
	if _, err := OpenIdentity(t.Context(), o); err == nil || !strings.Contains(err.Error(), `is that of "ns/pod"`) {
		t.Errorf("as another node: %v", err)
	}
}

func TestTheSealingKeysComeWithTheCertificateAndAreKeptWithIt(t *testing.T) {
	a, dir := newAuthority(t, time.Hour, "127.0.0.1"), t.TempDir()
	a.ring = &outriggerv1.KeyRing{Keys: []*outriggerv1.SealingKey{{Id: 3, Secret: []byte("secret"), SealsFromUnix: 5}}}
	for _, when := range []string{"joining", "starting again"} {
		var got []*outriggerv1.KeyRing
		o := a.options(dir)
		o.Sealing = func(r *outriggerv1.KeyRing) error { got = append(got, r); return errors.New("of no use") }
		id, err := OpenIdentity(t.Context(), o)
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if len(got) != 1 || !proto.Equal(got[0], a.ring) {
			t.Errorf("%s: told of %v, want of %v, once", when, got, a.ring)
		}
		if when == "joining" {
			continue
		}
		a.ring.Keys[0].Id = 4
		if err := id.renew(t.Context()); err != nil || len(got) != 2 || got[1].Keys[0].Id != 4 {
			t.Errorf("renewing: %v, told of %v, want key 4", err, got)
		}
	}
}

func TestJoiningTriesAgainUntilAControlPlaneAnswers(t *testing.T) {
	a := newAuthority(t, time.Hour, "127.0.0.1")
	a.fail = 1
	o := a.options(t.TempDir())
	o.Addresses = []string{"127.0.0.1:1", a.address} // nobody at the first
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := OpenIdentity(ctx, o); err != nil {
		t.Fatal(err)
	}
}

func TestASpentTokenIsAnErrorAtOnce(t *testing.T) {
	a := newAuthority(t, time.Hour, "127.0.0.1")
	a.spent = true
	_, err := OpenIdentity(t.Context(), a.options(t.TempDir()))
	if status.Code(err) != codes.Unauthenticated {
		t.Errorf("got %v", err)
	}
}

func TestATokenIsNotSentToAnotherHost(t *testing.T) {
	impostor := newAuthority(t, time.Hour, "elsewhere.example")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := OpenIdentity(ctx, impostor.options(t.TempDir()))
	if !errors.Is(err, context.DeadlineExceeded) || impostor.spent {
		t.Errorf("err %v, token spent %v", err, impostor.spent)
	}
}

func TestATokenOfAnotherControlPlaneIsAnErrorAtOnceAndNotSent(t *testing.T) {
	own, other := newAuthority(t, time.Hour, "127.0.0.1"), newAuthority(t, time.Hour, "127.0.0.1")
	o := other.options(t.TempDir())
	o.Token = own.token
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := OpenIdentity(ctx, o); !errors.Is(err, errOtherAuthority) || strings.Contains(err.Error(), "\n") || other.spent {
		t.Errorf("err %v, token spent %v; want %v in one line", err, other.spent, errOtherAuthority)
	}
	o.Addresses = append(o.Addresses, own.address)
	if _, err := OpenIdentity(ctx, o); err != nil {
		t.Errorf("with its own control plane second: %v", err)
	}
}

func TestAJoinWhoseAnswerWasLostIsRepeated(t *testing.T) {
	a := newAuthority(t, time.Hour, "127.0.0.1")
	a.lose = 2
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := OpenIdentity(ctx, a.options(t.TempDir())); err != nil {
		t.Errorf("after two lost answers: %v", err)
	}
}

func TestAnIdentityThatExpiresWhileRunningTakesAnotherToken(t *testing.T) {
	a, dir := newAuthority(t, -500*time.Millisecond, "127.0.0.1"), t.TempDir()
	reg, o := prometheus.NewRegistry(), a.options(dir)
	o.TokenFile, o.Reg = filepath.Join(dir, "token"), reg
	write(t, o.TokenFile, a.token+"\n")
	id, err := OpenIdentity(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := id.renew(t.Context()); err == nil || !strings.Contains(err.Error(), "its join token is spent") {
		t.Errorf("with the token it began with: %v", err)
	}
	a.token = strings.Replace(a.token, "00ff", "00fe", 1)
	a.spent, a.life = false, time.Hour
	write(t, o.TokenFile, a.token+"\n")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- id.Run(ctx) }()
	for late := time.Now().Add(10 * time.Second); id.current().expired() && time.Now().Before(late); {
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	<-done
	families, err := reg.Gather()
	if err != nil || len(families) != 1 {
		t.Fatalf("metrics %v, %v", families, err)
	}
	if got, want := families[0].Metric[0].GetGauge().GetValue(), float64(id.Expires().Unix()); got != want || time.Until(id.Expires()) < time.Minute {
		t.Errorf("%s is %v, want %v, in an hour", families[0].GetName(), got, want)
	}
}

func TestASidecarThatIsNotAdmittedJoinsWithANewToken(t *testing.T) {
	a, dir := newAuthority(t, time.Hour, "127.0.0.1"), t.TempDir()
	o, log := a.options(dir), make(logChannel, 10)
	o.TokenFile, o.Log = filepath.Join(dir, "token"), slog.New(slog.NewTextHandler(log, nil))
	write(t, o.TokenFile, a.token)
	id, err := OpenIdentity(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- id.Run(ctx) }()
	defer func() { cancel(); <-done }()
	log.want(t, "certificate issued")
	says := func(token, want string) {
		t.Helper()
		write(t, o.TokenFile, token)
		id.NotAdmitted()
		log.want(t, want)
	}
	bad := strings.Replace(a.token, "00ff", "00fd", 1)
	says(a.token, "its join token is spent")
	says(bad, "bad join token")
	says(bad, "the join token was refused")
	a.mu.Lock()
	a.token, a.spent = strings.Replace(a.token, "00ff", "00fe", 1), false
	a.mu.Unlock()
	says(a.token, "certificate issued")
	if got := id.current().tokenID; got != "00fe" {
		t.Errorf("the certificate is against token %s, want 00fe", got)
	}
}

// logChannel is a log's lines, for a test to wait for.
type logChannel chan string

func (c logChannel) Write(line []byte) (int, error) {
	c <- string(line)
	return len(line), nil
}

// want is that the next line contains a text.
func (c logChannel) want(t *testing.T, text string) {
	t.Helper()
	select {
	case line := <-c:
		if !strings.Contains(line, text) {
			t.Errorf("log %swant %q", line, text)
		}
	case <-time.After(10 * time.Second):
		t.Fatalf("nothing logged within 10 s, want %q", text)
	}
}

func TestAnIdentityIsRenewedWithoutItsConnections(t *testing.T) {
	a, dir := newAuthority(t, 3*time.Second, "127.0.0.1"), t.TempDir()
	id, err := OpenIdentity(t.Context(), a.options(dir))
	if err != nil {
		t.Fatal(err)
	}
	creds, first := id.TLSConfig(), id.Expires()
	if wait := time.Until(id.current().renewAt()); wait < time.Second {
		t.Errorf("renewal due in %v of 3 s", wait)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- id.Run(ctx) }()
	select {
	case <-a.renewed:
		<-a.renewed // by the certificate of the one before
	case <-time.After(10 * time.Second):
		t.Error("not renewed within 10 s")
	}
	cancel()
	<-done
	if !id.Expires().After(first) {
		t.Errorf("expires %v, at first %v", id.Expires(), first)
	}
	presented, err := creds.GetClientCertificate(nil)
	if err != nil || !presented.Leaf.NotAfter.Equal(id.Expires()) {
		t.Errorf("an older TLS configuration presents the certificate until %v (%v), want %v", presented.Leaf.NotAfter, err, id.Expires())
	}
	kept, err := loadKeyPair(filepath.Join(dir, "identity.pem"))
	if err != nil || kept.tokenID != "00ff" {
		t.Errorf("kept %+v, %v", kept, err)
	}
}

func TestAnExpiredIdentityNeedsAnotherToken(t *testing.T) {
	a, dir := newAuthority(t, -500*time.Millisecond, "127.0.0.1"), t.TempDir()
	if _, err := OpenIdentity(t.Context(), a.options(dir)); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenIdentity(t.Context(), a.options(dir)); err == nil || !strings.Contains(err.Error(), "its join token is spent") {
		t.Errorf("got %v", err)
	}
	o := a.options(dir)
	o.Token = ""
	if _, err := OpenIdentity(t.Context(), o); err == nil || !strings.Contains(err.Error(), "no join token") {
		t.Errorf("got %v", err)
	}
	a.token = strings.Replace(a.token, "00ff", "00fe", 1)
	a.spent, a.life = false, time.Hour
	if id, err := OpenIdentity(t.Context(), a.options(dir)); err != nil || time.Until(id.Expires()) < time.Minute {
		t.Errorf("with another token: %v", err)
	}
}

func FuzzParseJoinToken(f *testing.F) {
	good := "rig1_00ff_0123_" + strings.Repeat("ab", 32)
	for _, s := range []string{good, good + "_", "rig2" + good[4:], good[:20], strings.ToUpper(good), ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		token, err := parseJoinToken(text)
		if err != nil {
			if len(text) > 20 && strings.Contains(err.Error(), text) {
				t.Errorf("the error shows the token: %v", err)
			}
			return
		}
		if again := strings.Join([]string{"rig1", token.id, strings.Split(text, "_")[2], hex.EncodeToString(token.fingerprint[:])}, "_"); again != text {
			t.Errorf("%q was read as %q", text, again)
		}
	})
}
