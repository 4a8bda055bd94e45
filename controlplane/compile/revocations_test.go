package compile

import (
	"testing"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

func TestAGroupOfRevocationsHasAVersionByItsContent(t *testing.T) {
	group := func(name string, nodes ...string) *outriggerv1.Revocations {
		g := &outriggerv1.Revocations{Name: name}
		for _, node := range nodes {
			g.Revoked = append(g.Revoked, &outriggerv1.RevokedSidecar{NodeId: node, Admission: "of " + node})
		}
		return g
	}
	before := Revocations([]*outriggerv1.Revocations{group("1", "a"), group("2", "b")})
	after := Revocations([]*outriggerv1.Revocations{group("1", "a"), group("2", "b", "c")})
	if before[0].Version != after[0].Version || before[1].Version == after[1].Version {
		t.Errorf("versions %q and %q, then %q and %q; want that the second alone changes",
			before[0].Version, before[1].Version, after[0].Version, after[1].Version)
	}
	var got outriggerv1.Revocations
	if e := after[1]; e.Name != "2" || e.TypeURL != resource.RevocationsTypeURL || e.Any.UnmarshalTo(&got) != nil || got.Revoked[1].NodeId != "c" {
		t.Errorf("encoded as %v", after[1])
	}
	if none := Revocations(nil); none == nil || len(none) != 0 {
		t.Errorf("none is %v, want an empty list: nil is that they are not known", none)
	}
}
