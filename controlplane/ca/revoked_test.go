package ca

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/controlplane/store"
	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// admissionOf is the admission in a certificate, which must have one.
func admissionOf(t *testing.T, c *tls.Certificate) string {
	t.Helper()
	leaf, err := x509.ParseCertificate(c.Certificate[0])
	if err != nil || leaf.Subject.SerialNumber == "" {
		t.Fatalf("the certificate has no admission (%v)", err)
	}
	return leaf.Subject.SerialNumber
}

// follow hears of an authority's revocations.
func follow(t *testing.T, a *Authority) (heard chan []*outriggerv1.Revocations) {
	heard = make(chan []*outriggerv1.Revocations, 99)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.FollowRevoked(ctx, func(all []*outriggerv1.Revocations) { heard <- all })
	}()
	t.Cleanup(func() { cancel(); <-done })
	return heard
}

// wantRevoked waits until these admissions are told, and no others.
func wantRevoked(t *testing.T, heard chan []*outriggerv1.Revocations, want ...string) (last []*outriggerv1.Revocations) {
	t.Helper()
	slices.Sort(want)
	var got []string
	for late := time.After(20 * time.Second); ; {
		select {
		case last = <-heard:
		case <-late:
			t.Fatalf("last heard of %q, want %q", got, want)
		}
		got = nil
		for _, g := range last {
			for _, r := range g.Revoked {
				got = append(got, r.Admission)
			}
		}
		if slices.Sort(got); slices.Equal(got, want) {
			return last
		}
	}
}

func TestEveryReplicaTellsOfARevocationUntilItsCertificatesHaveEnded(t *testing.T) {
	w := newWorld(t)
	other := w.replica(w.store)
	heard := follow(t, other)
	wantRevoked(t, heard)
	certificates := map[string]*tls.Certificate{}
	for _, id := range []string{"a", "team/b", "c"} {
		var err error
		if certificates[id], err = w.issue(id, w.token(1), nil); err != nil {
			t.Fatal(err)
		}
	}
	a, b := admissionOf(t, certificates["a"]), admissionOf(t, certificates["team/b"])
	w.revoke("a")
	wantRevoked(t, heard, a)
	w.clock.advance(2 * time.Hour)
	w.revoke("team/b")
	here := wantRevoked(t, heard, a, b)
	if len(here) != 2 || here[0].Revoked[0].NodeId != "team/b" || here[1].Revoked[0].NodeId != "a" {
		t.Errorf("told as %v, want a group for each hour of their ends, the later first", here)
	}
	if there := wantRevoked(t, follow(t, w.Authority), a, b); !slices.EqualFunc(here, there, func(a, b *outriggerv1.Revocations) bool { return proto.Equal(a, b) }) {
		t.Errorf("one replica tells %v, the other %v", here, there)
	}

	ends := w.clock.now().Add(sidecarLife) // of a certificate that team/b could have got just before
	for _, step := range []struct {
		until time.Time
		left  []string
	}{{ends.Add(-2*time.Hour + time.Minute), []string{a, b}}, {ends.Add(-2*time.Hour + 2*backdate), []string{b}}, {ends, []string{b}}, {ends.Add(2 * backdate), nil}} {
		w.clock.advance(step.until.Sub(w.clock.now()))
		if err := w.sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		entries, _, err := w.store.List(t.Context(), revokedPrefix)
		if err != nil || len(entries) != len(step.left) {
			t.Errorf("%d revocations are left (%v), want %q", len(entries), err, step.left)
		}
	}
	wantRevoked(t, heard)
}

func (w *world) revoke(nodeID string) {
	w.t.Helper()
	if found, err := w.Revoke(w.t.Context(), nodeID); !found || err != nil {
		w.t.Fatalf("Revoke(%q) = %v, %v; want true", nodeID, found, err)
	}
}

// Who joins under the node id of a sidecar that was deleted does not bring that one back.
func TestADeletedSidecarStaysDeletedWhenAnotherGetsItsNodeID(t *testing.T) {
	w := newWorld(t)
	first, err := w.issue("n", w.token(1), nil)
	if err != nil {
		t.Fatal(err)
	}
	w.revoke("n")
	second, err := w.issue("n", w.token(1), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.issue("n", "", first); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "deleted") {
		t.Errorf("a renewal by the one that was deleted: %v, want PermissionDenied", err)
	}
	renewed, err := w.issue("n", "", second)
	if err != nil {
		t.Fatalf("a renewal by the other: %v", err)
	}
	if a, b, c := admissionOf(t, first), admissionOf(t, second), admissionOf(t, renewed); a == b || b != c {
		t.Errorf("admissions %q, %q, and %q after a renewal; want the second's own, and kept", a, b, c)
	}
}

// A sidecar that lost its state and joins again while its certificate is valid has two, and both are meant.
func TestBothCertificatesOfOneAdmissionAreRevoked(t *testing.T) {
	w := newWorld(t)
	token := w.token(2)
	lost, err := w.issue("n", token, nil)
	if err != nil {
		t.Fatal(err)
	}
	again, err := w.issue("n", token, nil)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := admissionOf(t, lost), admissionOf(t, again); a != b {
		t.Errorf("admissions %q and %q, want one", a, b)
	}
	w.clock.advance(sidecarLife + time.Hour)
	later, err := w.issue("n", w.token(1), nil)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := admissionOf(t, lost), admissionOf(t, later); a == b {
		t.Errorf("admission %q outlived its certificates", a)
	}
}

func TestARecordOfAnOlderControlPlaneGetsAnAdmission(t *testing.T) {
	w := newWorld(t)
	certificate, err := w.issue("n", w.token(1), nil)
	if err != nil {
		t.Fatal(err)
	}
	forget := func() {
		r, revision, err := w.record(t.Context(), "n")
		if err != nil {
			t.Fatal(err)
		}
		r.Admission = ""
		write, err := encoded(sidecarPrefix+"n", r, revision)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.store.Apply(t.Context(), []store.Write{write}); err != nil {
			t.Fatal(err)
		}
	}
	forget()
	renewed, err := w.issue("n", "", certificate)
	if err != nil {
		t.Fatal(err)
	}
	if r, _, err := w.record(t.Context(), "n"); err != nil || r.Admission != admissionOf(t, renewed) {
		t.Errorf("the record has %q (%v), the certificate %q", r.Admission, err, admissionOf(t, renewed))
	}
	forget()
	w.revoke("n")
	entries, _, err := w.store.List(t.Context(), revokedPrefix)
	if err != nil || len(entries) != 1 || !strings.Contains(string(entries[0].Value), `"node":"n"`) {
		t.Errorf("revocations %v (%v), want one of the node id", entries, err)
	}
}

func TestRevocationsAreBoundedAndUnreadableOnesLeftOut(t *testing.T) {
	w := newWorld(t)
	known := map[string]revocation{}
	begin := time.Unix(1_000_000*3600, 0)
	for i := range maxRevoked + 10 {
		r := revocation{fmt.Sprint("n", i), begin.Add(time.Duration(i) * time.Second)}
		value, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		w.learn(known, store.Event{Entry: store.Entry{Key: revokedPrefix + fmt.Sprintf("%08d", i), Value: value}})
	}
	for _, bad := range []string{`{`, `{"expires":"2026-01-01T00:00:00Z"}`, `{"node":"a b"}`} {
		w.learn(known, store.Event{Entry: store.Entry{Key: revokedPrefix + "bad", Value: []byte(bad)}})
	}
	all := w.grouped(known)
	var names []string
	count := 0
	for _, g := range all {
		names = append(names, g.Name)
		count += len(g.Revoked)
	}
	if want := []string{"1000002", "1000001", "1000000"}; count != maxRevoked || !slices.Equal(names, want) {
		t.Errorf("%d revocations in %q, want %d in %q", count, names, maxRevoked, want)
	}
	if first := all[2].Revoked[0]; first.Admission != "00000010" || first.NodeId != "n10" {
		t.Errorf("the first that is told is %v, want that the ten that end first are left out", first)
	}
}
