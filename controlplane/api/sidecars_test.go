package api

import (
	"context"
	"testing"

	"connectrpc.com/connect"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// revoker notes whom the fleet was told to revoke.
type revoker struct {
	fleet
	revoked []string
}

func (r *revoker) Revoke(nodeID string) { r.revoked = append(r.revoked, nodeID) }

func TestADeletedSidecarsStreamIsEndedOnlyIfItWasAdmitted(t *testing.T) {
	for id, want := range map[string]connect.Code{"s1": 0, "s2": connect.CodeNotFound, "": connect.CodeNotFound} {
		f := &revoker{}
		a := &API{fleet: f, authority: authority{}}
		_, err := a.DeleteSidecar(context.Background(), &outriggerv1.DeleteSidecarRequest{Id: id})
		if (err != nil) != (want != 0) || err != nil && connect.CodeOf(err) != want {
			t.Errorf("DeleteSidecar(%q): %v, want %v", id, err, want)
		}
		if ended := len(f.revoked) == 1; ended != (want == 0) {
			t.Errorf("DeleteSidecar(%q) revoked %q", id, f.revoked)
		}
	}
}
