package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// writeCertificate puts a new self-signed certificate with this serial number on disk.
func writeCertificate(t *testing.T, f *certificateFiles, serial int64) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{
		f.cert: {Type: "CERTIFICATE", Bytes: cert}, f.key: {Type: "PRIVATE KEY", Bytes: der},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// served is the serial number that a connection gets once the files are due to be looked at.
func served(t *testing.T, f *certificateFiles) int64 {
	t.Helper()
	f.mu.Lock()
	f.looked = time.Now().Add(-2 * certificateFresh)
	f.mu.Unlock()
	c, err := f.get(nil)
	if err != nil || c == nil {
		t.Fatalf("no certificate: %v", err)
	}
	leaf, err := x509.ParseCertificate(c.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	return leaf.SerialNumber.Int64()
}

func TestARenewedCertificateIsServedAndABrokenOneIsNot(t *testing.T) {
	dir := t.TempDir()
	f := &certificateFiles{cert: filepath.Join(dir, "c"), key: filepath.Join(dir, "k"), log: slog.New(slog.DiscardHandler)}
	writeCertificate(t, f, 1)
	if err := f.load(); err != nil {
		t.Fatal(err)
	}
	if got := served(t, f); got != 1 {
		t.Errorf("serial %d, want 1", got)
	}
	writeCertificate(t, f, 2)
	if got := served(t, f); got != 2 {
		t.Errorf("after the renewal: serial %d, want 2", got)
	}
	if err := os.WriteFile(f.cert, []byte("half a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := served(t, f); got != 2 {
		t.Errorf("after a broken renewal: serial %d, want the last good, 2", got)
	}
}

func TestClientCertificatesAreRequiredUnlessOptional(t *testing.T) {
	dir := t.TempDir()
	f := &certificateFiles{cert: filepath.Join(dir, "c"), key: filepath.Join(dir, "k")}
	writeCertificate(t, f, 1)
	for optional, want := range map[bool]tls.ClientAuthType{
		false: tls.RequireAndVerifyClientCert, true: tls.VerifyClientCertIfGiven,
	} {
		o := &options{tlsCert: f.cert, tlsKey: f.key, tlsClientCA: f.cert, tlsOptional: optional}
		c, err := serverTLS(o, slog.New(slog.DiscardHandler))
		if err != nil || c.ClientAuth != want || c.ClientCAs == nil {
			t.Errorf("optional %v: %+v, %v; want %v with authorities", optional, c, err, want)
		}
	}
}
