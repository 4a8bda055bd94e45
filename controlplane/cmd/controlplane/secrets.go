package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/store"
)

// openSecrets reads the keys that seal Secrets and makes them the store's. With the embedded store the first start makes
// one; of a cluster it is the operator's to make, the same for all replicas. It is nil where there is neither a file nor
// anything sealed: Secrets are then refused.
func openSecrets(ctx context.Context, s *store.Store, o *options) (*store.Secrets, error) {
	sealed, err := s.SecretsSealed(ctx)
	if err != nil {
		return nil, err
	}
	keys, err := secretKeys(o.secretsKeyFile)
	if errors.Is(err, fs.ErrNotExist) {
		switch cluster := len(o.etcd) > 0; {
		case sealed && (cluster || !o.secretsKeyLost):
			return nil, fmt.Errorf("%w: the Secrets of the store are sealed with its keys", err)
		case cluster && o.secretsKeyFile != o.defaultSecretsKeyFile():
			return nil, err
		case cluster:
			return nil, nil
		}
		keys, err = newSecretKey(o.secretsKeyFile)
	}
	if err != nil {
		return nil, err
	}
	secrets, err := store.NewSecrets(keys)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.secretsKeyFile, err)
	}
	if err := secrets.Claim(ctx, s, o.secretsKeyLost); err != nil {
		return nil, fmt.Errorf("%s: %w", o.secretsKeyFile, err)
	}
	return secrets, nil
}

// secretKeys reads the keys of a file, each a line of hex. No error tells what a line says.
func secretKeys(path string) (keys [][]byte, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for i, line := range strings.Split(strings.TrimSpace(string(b)), "\n") {
		key, err := hex.DecodeString(strings.TrimSpace(line))
		if err != nil || len(key) != store.SecretKeySize {
			return nil, fmt.Errorf("%s: line %d is no key, expected %d hex digits", path, i+1, 2*store.SecretKeySize)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// newSecretKey makes a file with one key that only this user can read.
func newSecretKey(path string) (keys [][]byte, err error) {
	key := make([]byte, store.SecretKeySize)
	rand.Read(key) // never fails
	return [][]byte{key}, writeFile(path, []byte(hex.EncodeToString(key)+"\n"), 0o600)
}
