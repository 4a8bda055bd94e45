package config

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

const revokedType = resource.RevocationsTypeURL

// revoke makes a group of deleted sidecars part of the view; none takes it out.
func (p *plane) revoke(group string, nodes ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.view[revokedType], group)
	if len(nodes) == 0 {
		return
	}
	r := &outriggerv1.Revocations{Name: group}
	for _, node := range nodes {
		r.Revoked = append(r.Revoked, &outriggerv1.RevokedSidecar{NodeId: node, Admission: "of " + node})
	}
	p.view[revokedType][group] = wired(r, group)
}

// listener hears of deleted sidecars.
type listener struct {
	mu   sync.Mutex // guards below
	last []string   // node ids
	told int
}

func (l *listener) hear(all []*outriggerv1.RevokedSidecar) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last, l.told = nil, l.told+1
	for _, r := range all {
		if r.Admission != "of "+r.NodeId {
			l.last = append(l.last, "another admission of")
		}
		l.last = append(l.last, r.NodeId)
	}
}

func (l *listener) heard() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// startsWith starts a sidecar that tells l, and has no configuration.
func (p *plane) startsWith(l *listener, dir string) *sidecar {
	return startSidecarWith(p.t, p, XDSOptions{Addresses: []string{"127.0.0.1:1"}, StateDir: dir, Target: &fakeTarget{}, Revoked: l.hear})
}

func TestDeletedSidecarsAreHeardOfWithoutAConfiguration(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p, l := newPlane(t), new(listener)
		p.manifest("g1", up("late", "http://late")) // which is waited for, all the while
		p.revoke("1", "a", "b")
		s := p.startsWith(l, dir)
		wantEqual(t, "at first", l.heard(), []string{"a", "b"})
		p.taken()
		p.revoke("2", "c")
		p.push(revokedType)
		wantEqual(t, "after another", l.heard(), []string{"a", "b", "c"})
		wantEqual(t, "sent", p.taken(), []string{"Revocations/2"})
		p.revoke("1")
		p.push(revokedType)
		wantEqual(t, "when some have ended", l.heard(), []string{"c"})
		if r := p.last(revokedType); r.ErrorDetail != nil {
			t.Errorf("NACK %v, want an ACK", r.ErrorDetail)
		}
		s.stop()

		// With the control plane away, and then back with nothing new.
		p.stop()
		l = new(listener)
		s = p.startsWith(l, dir)
		wantEqual(t, "from disk", l.heard(), []string{"c"})
		p.start()
		s.stop()
		p.startsWith(l, dir)
		wantEqual(t, "once it is back", l.heard(), []string{"c"})
		wantEqual(t, "sent for that", p.taken(), []string{"Manifest/node-1"}) // there is no configuration to keep
		if info, err := os.Stat(filepath.Join(dir, revokedName)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("kept with mode %v (%v), want 0600", info.Mode(), err)
		}
	})
}

func TestAGroupThatCannotBeReadLeavesItsOlderForm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, l := newPlane(t), new(listener)
		p.revoke("1", "a")
		p.startsWith(l, "")
		bad := func(group string, m proto.Message, name, version string) {
			p.mu.Lock()
			r := wired(m, name)
			if r.Name = group; version != "" {
				r.Version = version
			}
			p.view[revokedType][group] = r
			p.mu.Unlock()
			p.push(revokedType)
		}
		for _, c := range []struct {
			what, version, want string
			m                   proto.Message
		}{
			{"another version", "x", "its bytes do not match its version", &outriggerv1.Revocations{Name: "1"}},
			{"another name", "", `it is named "2" inside`, &outriggerv1.Revocations{Name: "2"}},
		} {
			bad("1", c.m, "1", c.version)
			wantEqual(t, c.what, l.heard(), []string{"a"})
			wantEqual(t, c.what, refusedBy(t, p.last(revokedType)), map[string]string{"Revocations/1": c.want})
		}
		p.revoke("1", "b")
		p.push(revokedType)
		wantEqual(t, "mended", l.heard(), []string{"b"})
		wantEqual(t, "mended", refusedBy(t, p.last(revokedType)), map[string]string{})
	})
}

// What a damaged file had is told again; what is whole in it counts until then.
func TestADamagedFileOfDeletedSidecarsIsNoStop(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p, l := newPlane(t), new(listener)
		p.revoke("1", "a")
		p.startsWith(l, dir).stop()
		path := filepath.Join(dir, revokedName)
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for what, damaged := range map[string][]byte{"cut": data[:len(data)-1], "empty": nil, "short": data[:5]} {
			if err := os.WriteFile(path, damaged, 0o600); err != nil {
				t.Fatal(err)
			}
			p.stop()
			l := new(listener)
			s := p.startsWith(l, dir)
			wantEqual(t, what, l.heard(), nil)
			s.stop()
			p.start()
			p.startsWith(l, dir).stop()
			wantEqual(t, what+", told again", l.heard(), []string{"a"})
		}
	})
}

func TestWithoutADiskDeletedSidecarsAreKeptInMemory(t *testing.T) {
	r := newRevocations("", nil)
	r.held["1"] = revokedGroup{version: "v", revoked: []*outriggerv1.RevokedSidecar{{NodeId: "a"}}}
	r.save()
	r.load()
	wantEqual(t, "offered", r.versions(), map[string]string{"1": "v"})
	wantEqual(t, "known", len(r.all()), 1)
}
