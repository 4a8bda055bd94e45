// Package store keeps the control plane's state in etcd: a member inside this
// process that listens nowhere, or a cluster reached over the network. Both go
// through etcd's own client, so one code path and one test suite serve both.
//
// A write is acknowledged after it is synced to disk. Every change has a
// revision, counted over the whole store; Apply changes any number of keys at
// once or none, on condition that they are still as the caller last saw them.
//
// A Store is safe for concurrent use. Every call but Watch ends within
// callTimeout. Not here: what the values mean (resources.go knows only how a
// Resource becomes bytes, and secrets.go how a Secret's values are sealed), and
// who may write.
package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// callTimeout bounds every call but Watch.
	callTimeout = 5 * time.Second
	// maxRequestBytes bounds the keys and values of one Apply. A cluster's own limit, 1.5 MiB by default, may be lower.
	maxRequestBytes = 8 << 20
	// closeTimeout bounds Close.
	closeTimeout = 10 * time.Second
)

var (
	// ErrConflict is why an Apply changed nothing: a key's revision is not the one that its Write names.
	// errors.As with a *ConflictError tells which.
	ErrConflict = errors.New("changed meanwhile")
	// ErrCompacted ends a Watch from a revision whose history is gone: List again.
	ErrCompacted = errors.New("history before the store's oldest revision")
	// ErrTooLarge is an Apply with more keys or bytes than etcd takes at once.
	ErrTooLarge = errors.New("too large for one transaction")
)

// Options say where the state is kept. Exactly one of DataDir and Endpoints is required.
type Options struct {
	// DataDir holds an embedded single member's state. It is created if missing and used by one process at a time.
	DataDir string
	// Endpoints are the client addresses of an etcd cluster, such as "https://10.0.0.1:2379".
	// The cluster sets its own compaction, quota and transaction limits.
	Endpoints []string
	// CAFile holds the authorities to trust for https endpoints. Default: the system's.
	CAFile string
	// CertFile and KeyFile authenticate to the cluster. Default: none. Both or neither.
	CertFile, KeyFile string
	// Prefix goes before every key. Default "/outrigger/".
	Prefix string
	// Log gets etcd's warnings. Default: discarded.
	Log *slog.Logger
}

// Store is an open store. Close it to release the member or the connections.
type Store struct {
	client *clientv3.Client
	prefix string
	stop   func() // stops the embedded member, if there is one
	hub    *hub

	closing  sync.Once
	closeErr error // of closing
}

// Entry is one key with its value.
type Entry struct {
	Key      string
	Value    []byte
	Revision int64 // of the last change to this key
}

// Write is one change of an Apply.
type Write struct {
	Key   string
	Value []byte
	// IfRevision is the key's revision that this write replaces: 0 for any, -1 for a key that must not exist.
	IfRevision int64
	// Delete removes the key in place of writing Value. Removing what is not there is no error.
	Delete bool
}

// ConflictError names the first key of an Apply that was not as its Write said. It is an ErrConflict.
type ConflictError struct {
	Key  string
	Want int64 // Write.IfRevision
	Got  int64 // 0 when the key does not exist
}

func (e *ConflictError) Error() string {
	switch {
	case e.Got == 0:
		return fmt.Sprintf("%s: expected revision %d, but it does not exist", e.Key, e.Want)
	case e.Want < 0:
		return fmt.Sprintf("%s: exists already, at revision %d", e.Key, e.Got)
	default:
		return fmt.Sprintf("%s: expected revision %d, but it is at %d", e.Key, e.Want, e.Got)
	}
}

// Is makes every ConflictError an ErrConflict.
func (e *ConflictError) Is(target error) bool { return target == ErrConflict }

// Open starts the embedded member or connects to the cluster, and returns when the store answers. It fails when ctx
// ends first, when another process uses DataDir, and when a cluster's endpoints do not answer within callTimeout.
func Open(ctx context.Context, o Options) (*Store, error) {
	if (o.DataDir == "") == (len(o.Endpoints) == 0) {
		return nil, errors.New("store: give either a data directory or etcd endpoints")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Store{prefix: cmp.Or(o.Prefix, "/outrigger/")}
	open := s.openEmbedded
	if o.DataDir == "" {
		open = s.openCluster
	}
	if err := open(ctx, o); err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	_, revision, err := s.List(ctx, GenerationKey)
	if err != nil {
		return nil, errors.Join(err, s.release())
	}
	s.hub = newHub(s.client, s.prefix, revision, o.Log)
	return s, nil
}

// Close ends watches and releases the embedded member or the connections, or fails after closeTimeout. Closing again
// changes nothing and returns the same.
func (s *Store) Close() error {
	s.closing.Do(func() {
		done := make(chan error, 1)
		go func() {
			s.hub.close()
			done <- s.release()
		}()
		select {
		case s.closeErr = <-done:
		case <-time.After(closeTimeout):
			s.closeErr = fmt.Errorf("store: not closed within %v", closeTimeout)
		}
	})
	return s.closeErr
}

// release gives back the client and the embedded member.
func (s *Store) release() error {
	err := s.client.Close()
	if s.stop != nil {
		s.stop()
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("store: %w", err)
	}
	return nil
}

// Get reads one key. ok is false when it does not exist.
func (s *Store) Get(ctx context.Context, key string) (e Entry, ok bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := s.client.Get(ctx, s.prefix+key)
	if err != nil {
		return Entry{}, false, fmt.Errorf("store: get %s: %w", key, err)
	}
	if len(res.Kvs) == 0 {
		return Entry{}, false, nil
	}
	kv := res.Kvs[0]
	return Entry{Key: key, Value: kv.Value, Revision: kv.ModRevision}, true, nil
}

// List reads every key that begins with prefix, in order of keys, as they are at one revision.
func (s *Store) List(ctx context.Context, prefix string) (entries []Entry, revision int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := s.client.Get(ctx, s.prefix+prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, 0, fmt.Errorf("store: list %s: %w", prefix, err)
	}
	entries = make([]Entry, len(res.Kvs))
	for i, kv := range res.Kvs {
		key := strings.TrimPrefix(string(kv.Key), s.prefix)
		entries[i] = Entry{Key: key, Value: kv.Value, Revision: kv.ModRevision}
	}
	return entries, res.Header.Revision, nil
}

// Apply makes all of the writes or none, and returns the revision that they have in common. Each key may occur once.
// Errors: ErrConflict, ErrTooLarge. After any other error, the writes may have been made.
func (s *Store) Apply(ctx context.Context, writes []Write) (revision int64, err error) {
	if n := size(writes); n > maxRequestBytes {
		return 0, fmt.Errorf("store: %d bytes: %w", n, ErrTooLarge)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conditions, changes, reads := s.operations(writes)
	res, err := s.client.Txn(ctx).If(conditions...).Then(changes...).Else(reads...).Commit()
	switch {
	case errors.Is(err, rpctypes.ErrTooManyOps), errors.Is(err, rpctypes.ErrRequestTooLarge):
		return 0, fmt.Errorf("store: %d keys: %w", len(writes), ErrTooLarge)
	case err != nil:
		return 0, fmt.Errorf("store: apply: %w", err)
	case !res.Succeeded:
		return 0, fmt.Errorf("store: %w", conflict(writes, res))
	}
	return res.Header.Revision, nil
}

func size(writes []Write) (bytes int) {
	for _, w := range writes {
		bytes += len(w.Key) + len(w.Value)
	}
	return bytes
}

// operations are an Apply's writes as a transaction. Its reads, made when a condition fails, are in order of writes.
func (s *Store) operations(writes []Write) (conditions []clientv3.Cmp, changes, reads []clientv3.Op) {
	for _, w := range writes {
		key := s.prefix + w.Key
		if w.Delete {
			changes = append(changes, clientv3.OpDelete(key))
		} else {
			changes = append(changes, clientv3.OpPut(key, string(w.Value)))
		}
		if w.IfRevision != 0 {
			want := max(w.IfRevision, 0) // etcd's revision of a missing key is 0
			conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(key), "=", want))
		}
		reads = append(reads, clientv3.OpGet(key, clientv3.WithKeysOnly()))
	}
	return conditions, changes, reads
}

// conflict finds the write that a refused transaction refused.
func conflict(writes []Write, res *clientv3.TxnResponse) error {
	for i, w := range writes {
		var got int64
		if kvs := res.Responses[i].GetResponseRange().GetKvs(); len(kvs) > 0 {
			got = kvs[0].ModRevision
		}
		if w.IfRevision != 0 && got != max(w.IfRevision, 0) {
			return &ConflictError{Key: w.Key, Want: w.IfRevision, Got: got}
		}
	}
	return ErrConflict
}
