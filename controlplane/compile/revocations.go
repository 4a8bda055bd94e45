package compile

import (
	"crypto/sha256"
	"encoding/hex"

	"google.golang.org/protobuf/types/known/anypb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

// Revocations encodes what every sidecar is sent of those that were deleted. It is never nil.
func Revocations(all []*outriggerv1.Revocations) []*Encoded {
	encoded := make([]*Encoded, 0, len(all))
	for _, r := range all {
		value := marshal(r)
		sum := sha256.Sum256(value)
		encoded = append(encoded, &Encoded{
			TypeURL: resource.RevocationsTypeURL,
			Name:    r.Name,
			Version: hex.EncodeToString(sum[:]),
			Any:     &anypb.Any{TypeUrl: resource.RevocationsTypeURL, Value: value},
		})
	}
	return encoded
}
