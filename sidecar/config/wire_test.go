package config

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

func TestANACKIsBounded(t *testing.T) {
	a := answer{typeURL: bindingType, nonce: "1"}
	for i := range 5000 {
		a.refusals = append(a.refusals, &outriggerv1.Refusal{
			TypeUrl: bindingType, Name: fmt.Sprintf("b%d", i), Reason: strings.Repeat("ä", 10_000),
		})
	}
	r := acknowledgement(a)
	if size := proto.Size(r); size > 2<<20 {
		t.Errorf("%d bytes", size)
	}
	if !strings.HasPrefix(r.ErrorDetail.Message, "5000 refused: Binding/b0: ä") {
		t.Errorf("message: %.60q", r.ErrorDetail.Message)
	}
	if len(a.refusals[0].Reason) != 20_000 {
		t.Error("the refusal itself was cut")
	}
}

func TestRetriesAreSpreadWithinABound(t *testing.T) {
	for failures, most := range map[int]time.Duration{0: firstRetry, 1: 2 * firstRetry, 5: 16 * time.Second, 6: lastRetry, 1000: lastRetry} {
		var longest time.Duration
		for range 1000 {
			longest = max(longest, retryAfter(failures))
		}
		if longest >= most || longest < most/2 {
			t.Errorf("after %d failures at most %v, want a little below %v", failures, longest, most)
		}
	}
}

func TestTheNextControlPlaneIsTried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, target := newPlane(t), &fakeTarget{}
		p.put(up("u", "http://a"), bind("b", "/1", "u"))
		p.manifest("g1")
		s := startSidecar(t, p, target, "", "127.0.0.1:2", "127.0.0.1:3")
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if !s.Status().Connected || target.count() != 1 {
			t.Errorf("status: %+v", s.Status())
		}
	})
}

func TestALossOfTheDiskStopsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(dir, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		p, target := newPlane(t), &fakeTarget{}
		p.put(up("u", "http://a"), bind("b", "/1", "u"))
		p.manifest("g1")
		startSidecar(t, p, target, dir)
		wantEqual(t, "runs", target.runs(), []string{"Upstream/u=http://a", "Binding/b=/1"})
	})
}

func TestAGenerationIsNeverAPath(t *testing.T) {
	for _, generation := range []string{"../../etc/x", "", "a/b", strings.Repeat("a", 300), ".", "current"} {
		if name := savedName(generation); filepath.Base(name) != name || name == currentName || len(name) > 140 {
			t.Errorf("%q is kept as %q", generation, name)
		}
	}
}

func FuzzEntry(f *testing.F) {
	for _, o := range []proto.Message{up("u", "http://a"), bind("b", "/b", "u")} {
		r := wired(o, "")
		f.Add(r.Resource.TypeUrl == bindingType, r.Resource.Value)
	}
	f.Fuzz(func(t *testing.T, isBinding bool, value []byte) {
		k := key{upstreamType, "u"}
		if isBinding {
			k = key{bindingType, "b"}
		}
		sum := sha256.Sum256(value)
		e, err := newEntry(k, hex.EncodeToString(sum[:]), value)
		if err == nil && e.object.GetName() != k.name {
			t.Errorf("%v was taken as %v", e.object, k)
		}
	})
}

func FuzzSaved(f *testing.F) {
	f.Add([]byte("x"))
	body, _ := proto.Marshal(&outriggerv1.SavedConfig{Manifest: &outriggerv1.Manifest{Generation: "g"}})
	f.Add(body)
	f.Fuzz(func(t *testing.T, body []byte) {
		sum := sha256.Sum256(body)
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "g.pb"), append(sum[:], body...), 0o600); err != nil {
			t.Fatal(err)
		}
		d := &disk{dir: dir, log: slog.New(slog.DiscardHandler)}
		if c, _ := d.load(); c != nil && c.Manifest.GetGeneration() == "" {
			t.Errorf("a configuration without generation was taken: %v", c)
		}
	})
}
