package config

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// Names in the state directory. A sidecar reads what an older one wrote there: a change of form needs a new suffix.
const (
	savedSuffix = ".pb"     // {generation}.pb: SHA-256 of the rest, then a SavedConfig
	currentName = "current" // a symbolic link to the newest
	keepSaved   = 3         // generations kept
)

// disk keeps the last good generations in a directory. It is used by one goroutine at a time.
type disk struct {
	dir string
	log *slog.Logger
}

// save writes a generation so that a crash at any time leaves it or the one before current.
func (d *disk) save(c *outriggerv1.SavedConfig) error {
	name := savedName(c.Manifest.GetGeneration())
	if err := writeHashed(filepath.Join(d.dir, name), c); err != nil {
		return err
	}
	link := filepath.Join(d.dir, currentName)
	if err := os.Remove(link + ".new"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(name, link+".new"); err != nil {
		return err
	}
	if err := os.Rename(link+".new", link); err != nil {
		return err
	}
	d.prune(name)
	return syncDir(d.dir)
}

// savedName is a generation's file. A generation that is not a plain word is named by its hash.
func savedName(generation string) string {
	plain := func(r rune) bool {
		return '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || r == '-'
	}
	if generation == "" || len(generation) > 128 || strings.ContainsFunc(generation, func(r rune) bool { return !plain(r) }) {
		sum := sha256.Sum256([]byte(generation))
		generation = "sha256-" + hex.EncodeToString(sum[:])
	}
	return generation + savedSuffix
}

// load reads the current generation, or the newest that is whole when that one is not; nil when there is none.
func (d *disk) load() (*outriggerv1.SavedConfig, map[key]entry) {
	names := d.newestFirst()
	if current, err := os.Readlink(filepath.Join(d.dir, currentName)); err == nil {
		names = append([]string{filepath.Base(current)}, names...)
	}
	for _, name := range names {
		c, entries, err := readSaved(filepath.Join(d.dir, name))
		if err == nil {
			return c, entries
		}
		d.log.Warn("a saved configuration cannot be used", "file", name, "error", err)
	}
	return nil, nil
}

func readSaved(path string) (*outriggerv1.SavedConfig, map[key]entry, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	var c outriggerv1.SavedConfig
	if err := unmarshalHashed(data, &c); err != nil {
		return nil, nil, err
	}
	if c.Manifest.GetGeneration() == "" {
		return nil, nil, errors.New("it has no manifest")
	}
	entries := map[key]entry{}
	for _, r := range c.Resources {
		k := key{r.TypeUrl, r.Name}
		if entries[k], err = newEntry(k, r.Version, r.Value); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", r.Name, err)
		}
	}
	return &c, entries, nil
}

// writeHashed keeps a message in a file, behind the SHA-256 of its bytes.
func writeHashed(path string, m proto.Message) error {
	body, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	sum := sha256.Sum256(body)
	return writeFile(path, append(sum[:], body...))
}

// unmarshalHashed reads a message behind the SHA-256 of its bytes.
func unmarshalHashed(data []byte, m proto.Message) error {
	if len(data) < sha256.Size || sha256.Sum256(data[sha256.Size:]) != [sha256.Size]byte(data) {
		return errors.New("damaged: its content does not match its hash")
	}
	return proto.Unmarshal(data[sha256.Size:], m)
}

// newestFirst lists the saved generations by when they were written.
func (d *disk) newestFirst() []string {
	entries, _ := os.ReadDir(d.dir) // none yet is none
	written := map[string]int64{}
	var names []string
	for _, e := range entries {
		if info, err := e.Info(); err == nil && strings.HasSuffix(e.Name(), savedSuffix) {
			written[e.Name()] = info.ModTime().UnixNano()
			names = append(names, e.Name())
		}
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(written[b], written[a]) })
	return names
}

// prune removes all but the newest generations, and never the current one.
func (d *disk) prune(current string) {
	kept := 1
	for _, name := range d.newestFirst() {
		if name == current {
			continue
		}
		if kept++; kept <= keepSaved {
			continue
		}
		if err := os.Remove(filepath.Join(d.dir, name)); err != nil {
			d.log.Warn("an old saved configuration cannot be removed", "file", name, "error", err)
		}
	}
}

// writeFile replaces a file that only its owner may read, whole or not at all.
func writeFile(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // gone already when all went well
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
