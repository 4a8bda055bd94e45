package config

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/prometheus/client_golang/prometheus"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

// maxFile is the largest file read, in bytes.
const maxFile = 16 << 20

// quiet is how long a file's directory must be still before the file is read again: editors and kubelet make several
// changes for one.
const quiet = 100 * time.Millisecond

// FileOptions say which file to run.
type FileOptions struct {
	// Path of a YAML or JSON file of resources: required.
	Path string
	// Labels of this sidecar: a binding is taken when its selector matches them.
	Labels map[string]string
	// Target runs what the file says: required.
	Target Target
	Log    *slog.Logger          // required
	Reg    prometheus.Registerer // nil registers nothing
}

// File takes the configuration from a file. A file with any mistake is refused whole, with all of them, and what ran
// before goes on.
type File struct {
	o       FileOptions
	board   board
	reloads *prometheus.CounterVec

	mu         sync.Mutex // guards below, and lets one load run at a time
	loaded     [sha256.Size]byte
	unreadable string    // why the file could not be read after loaded was, "" if it could
	left       []Refusal // what loaded left refused
}

// NewFile makes a source; Run starts it.
func NewFile(o FileOptions) *File {
	f := &File{o: o}
	f.board.status = Status{Source: SourceNone, Since: time.Now()}
	f.reloads = newFileMetrics(o.Reg, &f.board)
	return f
}

// Status is what runs now. It may be called at any time.
func (f *File) Status() Status { return f.board.read() }

// Run loads the file unless Reload did, and mistakes in it then end Run. It loads the file again whenever it changes,
// until ctx ends, whose error it returns.
func (f *File) Run(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", f.o.Path, err)
	}
	defer watcher.Close()
	// The directory, not the file: a rename over the file, or a link swapped beside it, would end a watch on the file.
	if err := watcher.Add(filepath.Dir(f.o.Path)); err != nil {
		return fmt.Errorf("watch %s: %w", f.o.Path, err)
	}
	if err := f.begin(); err != nil {
		return err
	}
	settle := stoppedTimer()
	defer settle.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-watcher.Events:
			settle.Reset(quiet)
		case err := <-watcher.Errors:
			f.o.Log.Warn("changes of the configuration file may have been missed", "path", f.o.Path, "error", err)
			settle.Reset(quiet)
		case <-settle.C:
			f.reloadIfChanged()
		}
	}
}

// begin loads the file for the first time, or again if it changed before it was watched.
func (f *File) begin() error {
	f.mu.Lock()
	loaded := f.loaded != [sha256.Size]byte{}
	f.mu.Unlock()
	if !loaded {
		return f.Reload()
	}
	f.reloadIfChanged()
	return nil
}

// Reload reads the file now, as on SIGHUP, even if it has not changed. The error has every mistake, each of
// which is logged too: those of the file, or what the target could not run (resource.Errors).
func (f *File) Reload() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	data, err := readFile(f.o.Path)
	if err != nil {
		f.unreadable = err.Error()
		f.refuse(err)
		return err
	}
	return f.loadLocked(data)
}

// reloadIfChanged reads the file after something happened around it. That it still cannot be read is not said again: the
// log may be in the same directory, and each line would lead to the next.
func (f *File) reloadIfChanged() {
	f.mu.Lock()
	defer f.mu.Unlock()
	data, err := readFile(f.o.Path)
	switch {
	case err != nil && err.Error() == f.unreadable:
	case err != nil:
		f.unreadable = err.Error()
		f.refuse(err)
	case sha256.Sum256(data) != f.loaded:
		_ = f.loadLocked(data) // logged there
	case f.unreadable != "":
		f.returnedLocked()
	}
}

// returnedLocked notes that the file can be read again and says what it said before.
func (f *File) returnedLocked() {
	f.unreadable = ""
	f.board.update(func(s *Status) { s.Refused = f.left })
	if len(f.left) == 0 {
		f.logWhole()
	}
}

func (f *File) logWhole() {
	f.o.Log.Info("the configuration file is whole again", "path", f.o.Path)
}

// readFile reads a file of a bounded size.
func readFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err == nil && len(data) > maxFile {
		return nil, fmt.Errorf("%s: more than %d bytes", path, maxFile)
	}
	return data, err
}

// loadLocked applies a file's content.
func (f *File) loadLocked(data []byte) error {
	f.loaded, f.unreadable = sha256.Sum256(data), ""
	wasRefused := len(f.board.read().Refused) > 0
	c, err := f.read(data)
	if err != nil {
		f.left = f.refuse(err)
		return err
	}
	refusals := f.o.Target.Apply(c)
	if len(c.Bindings) == 0 {
		f.o.Log.Warn("no Binding's selector matches this sidecar: it serves nothing", "path", f.o.Path, "labels", f.o.Labels)
	}
	f.left = refusals
	f.board.update(func(s *Status) {
		s.Source, s.Generation, s.Confirmed, s.Refused = SourceFile, c.Generation, time.Now(), refusals
	})
	var errs resource.Errors
	for _, r := range refusals {
		errs = append(errs, resource.Error{Path: f.o.Path + ": " + r.Kind + "/" + r.Name, Message: r.Reason})
	}
	f.logAll(errs)
	f.count(errs.Err())
	if wasRefused && len(errs) == 0 {
		f.logWhole()
	}
	return errs.Err()
}

// count notes how a reading of the file went.
func (f *File) count(err error) {
	result := "applied"
	if err != nil {
		result = "refused"
	}
	f.reloads.WithLabelValues(result).Inc()
}

// refuse notes that the file could not be taken, and returns why; what ran before goes on.
func (f *File) refuse(err error) []Refusal {
	errs, ok := err.(resource.Errors)
	if !ok {
		errs = resource.Errors{{Path: f.o.Path, Message: err.Error()}}
	}
	var refusals []Refusal
	for _, e := range errs {
		refusals = append(refusals, Refusal{Kind: "File", Reason: e.Error()})
	}
	f.board.update(func(s *Status) { s.Refused = refusals })
	f.logAll(errs)
	f.count(err)
	return refusals
}

func (f *File) logAll(errs resource.Errors) {
	for _, e := range errs {
		f.o.Log.Error("the configuration file has a mistake", "path", e.Path, "mistake", e.Message)
	}
}

// read makes a Config of the file's bindings for this sidecar, the upstreams that they name and the secrets that these
// name, the policies that are for any of the bindings, and all tenants and keys.
func (f *File) read(data []byte) (*Config, error) {
	objs, errs := resource.Load(f.o.Path, data)
	if len(errs) > 0 {
		return nil, errs
	}
	slices.SortFunc(objs, func(a, b resource.Object) int {
		place := func(o resource.Object) int { return slices.Index(resource.Kinds(), resource.KindOf(o)) }
		return cmp.Or(cmp.Compare(place(a), place(b)), cmp.Compare(a.GetName(), b.GetName()))
	})
	wanted := f.wanted(objs)
	sum := sha256.Sum256(data)
	c := &Config{Generation: hex.EncodeToString(sum[:])}
	for _, o := range objs {
		if wanted[resource.Ref(o)] {
			c.add(o)
		}
	}
	return c, f.check(objs, wanted).Err()
}

// wanted are the references of what this sidecar runs of a file.
func (f *File) wanted(objs []resource.Object) map[string]bool {
	wanted := map[string]bool{}
	var bindings []*outriggerv1.Binding
	for _, o := range objs {
		b, ok := o.(*outriggerv1.Binding)
		if !ok || !resource.Matches(b.Selector, f.o.Labels) {
			continue
		}
		bindings = append(bindings, b)
		wanted[resource.Ref(b)] = true
		for _, u := range b.Upstreams {
			wanted[resource.KindUpstream+"/"+u.Name] = true
		}
	}
	for _, o := range objs {
		switch o := o.(type) {
		case *outriggerv1.Upstream:
			for _, s := range resource.SecretsOf(o) {
				wanted[resource.KindSecret+"/"+s.Name] = wanted[resource.KindSecret+"/"+s.Name] || wanted[resource.Ref(o)]
			}
		case *outriggerv1.Policy:
			wanted[resource.Ref(o)] = slices.ContainsFunc(bindings, func(b *outriggerv1.Binding) bool { return resource.Targets(o, b.Name) })
		case *outriggerv1.Tenant, *outriggerv1.Key:
			wanted[resource.Ref(o)] = true
		}
	}
	return wanted
}

// check asks the target about every resource before any of them runs.
func (f *File) check(objs []resource.Object, wanted map[string]bool) (errs resource.Errors) {
	for _, o := range objs {
		if !wanted[resource.Ref(o)] {
			continue
		}
		if err := f.o.Target.Check(o); err != nil {
			errs = append(errs, resource.Error{Path: f.o.Path + ": " + resource.Ref(o), Message: err.Error()})
		}
	}
	return errs
}
