package config

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
)

// joinToken is a secret against which a sidecar gets its first certificate: rig1_{id}_{secret}_{fingerprint}.
type joinToken struct {
	text        string
	id          string
	fingerprint [sha256.Size]byte // of the control plane's root certificate
}

// parseJoinToken takes a token apart. Its errors do not show the token.
func parseJoinToken(text string) (joinToken, error) {
	parts := strings.Split(text, "_")
	if len(parts) != 4 || parts[0] != "rig1" {
		return joinToken{}, errors.New("join token: not of the form rig1_{id}_{secret}_{fingerprint}")
	}
	for _, part := range parts[1:3] {
		if b, err := hex.DecodeString(part); err != nil || len(b) == 0 || len(b) > 64 || strings.ToLower(part) != part {
			return joinToken{}, errors.New("join token: its id and secret must be lower-case hex")
		}
	}
	t := joinToken{text: text, id: parts[1]}
	sum, err := hex.DecodeString(parts[3])
	if err != nil || len(sum) != len(t.fingerprint) || strings.ToLower(parts[3]) != parts[3] {
		return joinToken{}, errors.New("join token: its fingerprint must be a SHA-256 in lower-case hex; was it cut?")
	}
	copy(t.fingerprint[:], sum)
	return t, nil
}
