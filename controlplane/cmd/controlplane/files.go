package main

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// minToken is the shortest admin token that is accepted, in bytes.
const minToken = 16

// adminToken reads the token for the management API, or makes one that only this user can read.
func adminToken(path string) (string, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return newAdminToken(path)
	}
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(b))
	if len(token) < minToken {
		return "", fmt.Errorf("%s: an admin token has at least %d characters, this one has %d", path, minToken, len(token))
	}
	return token, nil
}

func newAdminToken(path string) (string, error) {
	secret := make([]byte, 32)
	rand.Read(secret) // never fails, by its documentation
	token := hex.EncodeToString(secret)
	return token, writeFile(path, []byte(token+"\n"), 0o600)
}

// writeRoot puts the authority's certificate where clients of this host find it.
func writeRoot(path string, roots [][]byte) error {
	var b []byte
	for _, der := range roots {
		b = append(b, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	return writeFile(path, b, 0o644)
}

// writeFile puts a whole file in place at once, under a directory that is made if missing.
func writeFile(path string, content []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // gone after the rename
	_, err = f.Write(content)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
