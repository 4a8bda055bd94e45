package config

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/proto/resource"
)

// newEntry decodes a resource as it travels and checks it by itself. Its version must be the SHA-256 of its bytes in
// hex, so that a damaged resource is noticed wherever it was damaged. With an error about what it says, the entry has its
// object all the same.
func newEntry(k key, version string, value []byte) (entry, error) {
	kind, ok := resource.KindOfTypeURL(k.typeURL)
	if !ok {
		return entry{}, fmt.Errorf("type %q is not known here", k.typeURL)
	}
	if sum := sha256.Sum256(value); version != hex.EncodeToString(sum[:]) {
		return entry{}, errors.New("its bytes do not match its version")
	}
	o, _ := resource.New(kind)
	if err := proto.Unmarshal(value, o); err != nil {
		return entry{}, fmt.Errorf("not a readable %s: %v", kind, err)
	}
	if o.GetName() != k.name {
		return entry{}, fmt.Errorf("it is named %q inside", o.GetName())
	}
	if errs := resource.Validate(o); len(errs) > 0 {
		return entry{object: o}, errors.New(strings.ReplaceAll(errs.Error(), "\n", "; "))
	}
	return entry{version: version, value: value, object: o}, nil
}
