package config

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

// revokedName is the file in the state directory that has what sidecars were deleted: SHA-256 of the rest, then a
// SavedRevocations. A sidecar reads what an older one wrote there: a change of form needs a new name.
const revokedName = "revoked"

// revocations are the sidecars that were deleted, as far as the control plane has told. They are no part of a generation:
// they count as soon as they have come. Owned by Restore, then by Run.
type revocations struct {
	path string // "" keeps nothing on disk
	log  *slog.Logger
	held map[string]revokedGroup // by name
}

// revokedGroup is one resource of theirs.
type revokedGroup struct {
	version string
	value   []byte
	revoked []*outriggerv1.RevokedSidecar
}

func newRevocations(stateDir string, log *slog.Logger) *revocations {
	r := &revocations{log: log, held: make(map[string]revokedGroup)}
	if stateDir != "" {
		r.path = filepath.Join(stateDir, revokedName)
	}
	return r
}

// newRevokedGroup decodes a resource as it travels. Its version must be the SHA-256 of its bytes, as newEntry's.
func newRevokedGroup(name, version string, value []byte) (g revokedGroup, err error) {
	var decoded outriggerv1.Revocations
	if sum := sha256.Sum256(value); version != hex.EncodeToString(sum[:]) {
		return g, errors.New("its bytes do not match its version")
	}
	if err := proto.Unmarshal(value, &decoded); err != nil {
		return g, fmt.Errorf("not readable Revocations: %v", err)
	}
	if decoded.Name != name {
		return g, fmt.Errorf("it is named %q inside", decoded.Name)
	}
	return revokedGroup{version, value, decoded.Revoked}, nil
}

// take takes a response in, and returns the answer to it. A resource that cannot be read leaves its older form.
func (r *revocations) take(m *discoveryv3.DeltaDiscoveryResponse) answer {
	refused := map[key]fault{}
	for _, res := range m.Resources {
		g, err := newRevokedGroup(res.GetName(), res.GetVersion(), res.GetResource().GetValue())
		if err != nil {
			r.log.Error("revocations of sidecars were refused", "name", res.GetName(), "reason", err)
			refused[key{m.TypeUrl, res.GetName()}] = fault{version: res.GetVersion(), reason: err.Error()}
			continue
		}
		r.held[res.GetName()] = g
	}
	for _, name := range m.RemovedResources {
		delete(r.held, name)
	}
	return answer{typeURL: m.TypeUrl, nonce: m.Nonce, refusals: refusals(refused)}
}

// versions are what is here, for a new stream.
func (r *revocations) versions() map[string]string {
	out := make(map[string]string, len(r.held))
	for name, g := range r.held {
		out[name] = g.version
	}
	return out
}

// all are the revocations of every group.
func (r *revocations) all() (all []*outriggerv1.RevokedSidecar) {
	for _, name := range slices.Sorted(maps.Keys(r.held)) {
		all = append(all, r.held[name].revoked...)
	}
	return all
}

// save keeps them on disk. That it cannot is no reason not to heed them.
func (r *revocations) save() {
	if r.path == "" {
		return
	}
	saved := &outriggerv1.SavedRevocations{}
	for _, name := range slices.Sorted(maps.Keys(r.held)) {
		g := r.held[name]
		saved.Resources = append(saved.Resources, &outriggerv1.SavedResource{
			TypeUrl: resource.RevocationsTypeURL, Name: name, Version: g.version, Value: g.value,
		})
	}
	if err := writeHashed(r.path, saved); err != nil {
		r.log.Error("which sidecars were deleted cannot be kept on disk", "path", r.path, "error", err)
	}
}

// load reads what save wrote. What cannot be read is said, and missing until the control plane tells it again.
func (r *revocations) load() {
	if r.path == "" {
		return
	}
	data, err := os.ReadFile(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var saved outriggerv1.SavedRevocations
	if err == nil {
		err = unmarshalHashed(data, &saved)
	}
	for _, s := range saved.Resources {
		g, bad := newRevokedGroup(s.Name, s.Version, s.Value)
		if bad != nil {
			err = bad
			continue
		}
		r.held[s.Name] = g
	}
	if err != nil {
		r.log.Error("which sidecars were deleted cannot be read from disk: all are let in until the control plane tells", "path", r.path, "error", err)
	}
}

// PeerOf is the node id in a sidecar's certificate, and the admission that it was issued by; "" where there is none.
func PeerOf(leaf *x509.Certificate) (nodeID, admission string) {
	if len(leaf.URIs) != 1 {
		return "", ""
	}
	nodeID, _ = strings.CutPrefix(leaf.URIs[0].String(), uriPrefix)
	return nodeID, leaf.Subject.SerialNumber
}
