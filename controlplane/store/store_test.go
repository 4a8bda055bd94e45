package store

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDirEnv); dir != "" {
		writeUntilKilled(dir)
	}
	goleak.VerifyTestMain(m)
}

// backends are the two ways to keep state, over which every claim of this package is tested.
var backends = map[string]func(t *testing.T) Options{
	"embedded": func(t *testing.T) Options { return Options{DataDir: t.TempDir()} },
	"cluster":  func(t *testing.T) Options { return Options{Endpoints: []string{startEtcd(t)}} },
}

// startEtcd runs a member with a listener, as an operator's own etcd, and returns its address.
func startEtcd(t *testing.T) string {
	t.Helper()
	socket := url.URL{Scheme: "unix", Path: filepath.Join(shortDir(t), "etcd:0")}
	c := embeddedConfig(Options{DataDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{socket}, []url.URL{socket}
	member, err := embed.StartEtcd(c)
	if err != nil {
		t.Fatalf("start etcd: %v", err)
	}
	t.Cleanup(member.Close)
	select {
	case <-member.Server.ReadyNotify():
	case <-time.After(10 * time.Second):
		t.Fatal("etcd was not ready within 10 s")
	}
	return socket.String()
}

// shortDir is a temporary directory whose path leaves room for a socket's name.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "store")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func open(t *testing.T, o Options) *Store {
	t.Helper()
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

// forEachBackend runs claim on a fresh store of each kind.
func forEachBackend(t *testing.T, claim func(t *testing.T, s *Store)) {
	for name, options := range backends {
		t.Run(name, func(t *testing.T) { claim(t, open(t, options(t))) })
	}
}

func apply(t *testing.T, s *Store, writes ...Write) int64 {
	t.Helper()
	rev, err := s.Apply(t.Context(), writes)
	if err != nil {
		t.Fatalf("Apply(%v): %v", writes, err)
	}
	return rev
}

func put(key, value string) Write { return Write{Key: key, Value: []byte(value)} }

func keys(entries []Entry) []string {
	var keys []string
	for _, e := range entries {
		keys = append(keys, e.Key)
	}
	return keys
}

func TestWhatWasAppliedIsRead(t *testing.T) {
	forEachBackend(t, func(t *testing.T, s *Store) {
		if _, ok, err := s.Get(t.Context(), "a/1"); ok || err != nil {
			t.Fatalf("Get of a missing key = %v, %v; want false, nil", ok, err)
		}
		rev := apply(t, s, put("a/2", "two"), put("a/1", "one"), put("b/1", "other"))
		e, ok, err := s.Get(t.Context(), "a/1")
		if err != nil || !ok || e.Key != "a/1" || string(e.Value) != "one" || e.Revision != rev {
			t.Errorf("Get = %+v, %v, %v; want a/1 = one at %d", e, ok, err, rev)
		}
		entries, listed, err := s.List(t.Context(), "a/")
		if err != nil || listed != rev || !slices.Equal(keys(entries), []string{"a/1", "a/2"}) {
			t.Errorf("List = %v at %d, %v; want a/1 and a/2 at %d", keys(entries), listed, err, rev)
		}
	})
}

func TestAConflictWritesNothingAndNamesItsKey(t *testing.T) {
	forEachBackend(t, func(t *testing.T, s *Store) {
		rev := apply(t, s, put("a", "1"))
		for name, c := range map[string]struct {
			write Write
			want  ConflictError
		}{
			"stale":   {Write{Key: "a", IfRevision: rev - 1}, ConflictError{"a", rev - 1, rev}},
			"exists":  {Write{Key: "a", IfRevision: -1}, ConflictError{"a", -1, rev}},
			"missing": {Write{Key: "b", IfRevision: rev}, ConflictError{"b", rev, 0}},
			"deleted": {Write{Key: "b", IfRevision: rev, Delete: true}, ConflictError{"b", rev, 0}},
		} {
			_, err := s.Apply(t.Context(), []Write{put("other", "x"), c.write})
			var got *ConflictError
			if !errors.Is(err, ErrConflict) || !errors.As(err, &got) || *got != c.want {
				t.Errorf("%s: Apply = %v; want %v", name, err, &c.want)
			}
		}
		if _, ok, err := s.Get(t.Context(), "other"); ok || err != nil {
			t.Errorf("the other write of a refused Apply was made (%v, %v)", ok, err)
		}
	})
}

func TestOneOfManyWritersOfOneRevisionWins(t *testing.T) {
	forEachBackend(t, func(t *testing.T, s *Store) {
		var wg sync.WaitGroup
		errs := make([]error, 16)
		for i := range errs {
			wg.Go(func() {
				_, errs[i] = s.Apply(t.Context(), []Write{{Key: "a", Value: fmt.Append(nil, i), IfRevision: -1}})
			})
		}
		wg.Wait()
		won := 0
		for _, err := range errs {
			if err == nil {
				won++
			} else if !errors.Is(err, ErrConflict) {
				t.Errorf("Apply: %v; want a conflict", err)
			}
		}
		if won != 1 {
			t.Errorf("%d of %d writers won, want 1", won, len(errs))
		}
	})
}

func TestATransactionThatIsTooLargeIsRefusedWhole(t *testing.T) {
	forEachBackend(t, func(t *testing.T, s *Store) {
		writes := make([]Write, maxTxnKeys+1)
		for i := range writes {
			writes[i] = put(fmt.Sprint("k", i), "v")
		}
		if _, err := s.Apply(t.Context(), writes); !errors.Is(err, ErrTooLarge) {
			t.Errorf("Apply of %d keys: %v; want ErrTooLarge", len(writes), err)
		}
		big := Write{Key: "big", Value: bytes.Repeat([]byte("x"), maxRequestBytes+1)}
		if _, err := s.Apply(t.Context(), []Write{big}); !errors.Is(err, ErrTooLarge) {
			t.Errorf("Apply of %d bytes: %v; want ErrTooLarge", len(big.Value), err)
		}
		if entries, _, err := s.List(t.Context(), ""); err != nil || len(entries) != 0 {
			t.Errorf("stored %v (%v), want nothing", keys(entries), err)
		}
	})
}

// next receives one batch within a deadline.
func next(t *testing.T, watch <-chan Batch) (Batch, bool) {
	t.Helper()
	select {
	case b, ok := <-watch:
		return b, ok
	case <-time.After(10 * time.Second):
		t.Fatal("nothing from the watch within 10 s")
		return Batch{}, false
	}
}

func TestAWatchSendsEachTransactionWholeAndInOrder(t *testing.T) {
	forEachBackend(t, func(t *testing.T, s *Store) {
		before := apply(t, s, put("a/1", "seen already"))
		watch := s.Watch(t.Context(), "a/", before)
		past := apply(t, s, put("a/1", "1"), put("a/2", "2"), put("b/1", "not watched"))
		now := apply(t, s, Write{Key: "a/1", Delete: true}, put("a/3", "3"))

		for _, want := range []struct {
			revision int64
			events   string
		}{
			{past, "a/1=1 a/2=2"},
			{now, "a/1 deleted a/3=3"},
		} {
			b, _ := next(t, watch)
			if got := describe(b.Events); got != want.events || b.Revision != want.revision || b.Err != nil {
				t.Errorf("batch %q at %d, %v; want %q at %d", got, b.Revision, b.Err, want.events, want.revision)
			}
		}
	})
}

// describe is events as text, in order of keys.
func describe(events []Event) string {
	var lines []string
	for _, e := range events {
		if e.Deleted {
			lines = append(lines, e.Key+" deleted")
		} else {
			lines = append(lines, e.Key+"="+string(e.Value))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, " ")
}

// handedOut waits until the store has handed a revision to its watchers.
func handedOut(t *testing.T, s *Store, revision int64) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for {
		s.hub.mu.Lock()
		seen := s.hub.seen
		s.hub.mu.Unlock()
		if seen >= revision {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("revision %d was not handed out within 10 s, only %d", revision, seen)
		case <-time.After(time.Millisecond):
		}
	}
}

func TestAWatchBeginsWithWhatHadChangedAlready(t *testing.T) {
	forEachBackend(t, func(t *testing.T, s *Store) {
		before := apply(t, s, put("a/1", "1"), put("a/2", "2"), put("a/3", "3"), put("a/4", "4"))
		apply(t, s, put("a/1", "new"), Write{Key: "a/2", Delete: true}, put("b/1", "not watched"))
		apply(t, s, Write{Key: "a/3", Delete: true}, put("a/5", "for a moment"))
		last := apply(t, s, put("a/3", "made again"), Write{Key: "a/5", Delete: true})
		handedOut(t, s, last)

		watch := s.Watch(t.Context(), "a/", before)
		b, _ := next(t, watch)
		want := "a/1=new a/2 deleted a/3 deleted a/3=made again"
		if got := describe(b.Events); got != want || b.Revision != last || b.Err != nil {
			t.Errorf("first batch %q at %d, %v; want %q at %d", got, b.Revision, b.Err, want, last)
		}
		if !slices.IsSortedFunc(b.Events, func(x, y Event) int { return cmp.Compare(x.Revision, y.Revision) }) {
			t.Errorf("events %+v are not in order of revisions", b.Events)
		}
		now := apply(t, s, put("a/6", "6"))
		if b, _ := next(t, watch); b.Revision != now || describe(b.Events) != "a/6=6" {
			t.Errorf("then %+v, want a/6=6 at %d", b, now)
		}
	})
}

func TestAWatchTellsTheRevisionOfChangesThatCameToNothing(t *testing.T) {
	forEachBackend(t, func(t *testing.T, s *Store) {
		before := apply(t, s, put("a", "1"))
		apply(t, s, put("b", "2"))
		last := apply(t, s, Write{Key: "b", Delete: true})
		handedOut(t, s, last)
		if b, _ := next(t, s.Watch(t.Context(), "", before)); b.Revision != last || len(b.Events) != 0 || b.Err != nil {
			t.Errorf("got %+v, want no events at %d", b, last)
		}
	})
}

// TestManyWatchesThatEndAtOnceDisturbNobody is what a page of clients does that loses its network.
func TestManyWatchesThatEndAtOnceDisturbNobody(t *testing.T) {
	forEachBackend(t, func(t *testing.T, s *Store) {
		start := apply(t, s, put("a", "0"))
		stays := s.Watch(t.Context(), "a", start)
		ctx, cancel := context.WithCancel(t.Context())
		var many []<-chan Batch
		for range 200 {
			many = append(many, s.Watch(ctx, "a", start-1))
		}
		for i, watch := range many {
			if b, _ := next(t, watch); b.Err != nil || describe(b.Events) != "a=0" {
				t.Fatalf("watch %d: %+v, want a=0", i, b)
			}
		}
		cancel()
		for range 3 {
			revision := apply(t, s, put("a", "1"))
			if b, _ := next(t, stays); b.Revision != revision || b.Err != nil {
				t.Fatalf("the watch that stays got %+v, want revision %d", b, revision)
			}
		}
		began := time.Now()
		if err := s.Close(); err != nil || time.Since(began) > closeTimeout/2 {
			t.Errorf("Close: %v after %v", err, time.Since(began))
		}
		if b, ok := next(t, s.Watch(t.Context(), "a", start)); ok {
			t.Errorf("a Watch after Close got %+v, want a closed channel", b)
		}
	})
}

func TestAWatchEndsWithItsContext(t *testing.T) {
	forEachBackend(t, func(t *testing.T, s *Store) {
		ctx, cancel := context.WithCancel(t.Context())
		watch := s.Watch(ctx, "a/", 0)
		next(t, watch) // what there is
		cancel()
		if b, ok := next(t, watch); ok {
			t.Errorf("got %+v, want a closed channel", b)
		}
	})
}

func TestAWatchFromBeforeCompactionSaysSo(t *testing.T) {
	forEachBackend(t, func(t *testing.T, s *Store) {
		first := apply(t, s, put("a/1", "1"))
		last := apply(t, s, put("a/1", "2"))
		if _, err := s.client.Compact(t.Context(), last); err != nil {
			t.Fatalf("compact: %v", err)
		}
		handedOut(t, s, last)
		watch := s.Watch(t.Context(), "a/", first)
		if b, _ := next(t, watch); !errors.Is(b.Err, ErrCompacted) {
			t.Errorf("got %+v, want ErrCompacted", b)
		}
		if b, ok := next(t, watch); ok {
			t.Errorf("got %+v after the error, want a closed channel", b)
		}
	})
}

func TestASlowWatcherIsToldInsteadOfBufferedWithoutEnd(t *testing.T) {
	forEachBackend(t, func(t *testing.T, s *Store) {
		start := apply(t, s, put("a", "0"))
		watch := s.Watch(t.Context(), "a", start)
		var end int64
		for range watchBuffer + 10 {
			end = apply(t, s, put("a", "x"))
		}
		// Nothing is read until everything has been handed out: the watch can only have ended, by lagging.
		handedOut(t, s, end)
		var last Batch
		got := 0
		for b := range watch {
			last, got = b, got+1
		}
		// The reader may hold one more that it could not pass on.
		if got < watchBuffer+1 || got > watchBuffer+2 || !errors.Is(last.Err, ErrLagging) {
			t.Errorf("%d batches, the last with %v; want %d or one more, and ErrLagging", got, last.Err, watchBuffer+1)
		}
	})
}

func TestStateSurvivesAReopen(t *testing.T) {
	o := Options{DataDir: t.TempDir()}
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	rev := apply(t, s, put("a", "1"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	e, ok, err := open(t, o).Get(t.Context(), "a")
	if err != nil || !ok || string(e.Value) != "1" || e.Revision != rev {
		t.Errorf("Get after a reopen = %+v, %v, %v; want 1 at %d", e, ok, err, rev)
	}
}

func TestADataDirectoryInUseIsRefusedAtOnce(t *testing.T) {
	o := Options{DataDir: t.TempDir()}
	open(t, o)
	if _, err := Open(t.Context(), o); err == nil || !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("second Open: %v; want that the directory is in use", err)
	}
}

func TestOpenRefusesWhatCannotWork(t *testing.T) {
	for name, c := range map[string]struct {
		options Options
		want    string
	}{
		"neither":  {Options{}, "either"},
		"both":     {Options{DataDir: "x", Endpoints: []string{"y"}}, "either"},
		"no peer":  {Options{Endpoints: []string{"unix:///nowhere/etcd:0"}}, "does not answer"},
		"no CA":    {Options{Endpoints: []string{"https://127.0.0.1:1"}, CAFile: "/nowhere/ca.pem"}, "certificates"},
		"half TLS": {Options{Endpoints: []string{"https://127.0.0.1:1"}, CertFile: "/nowhere/c.pem"}, "certificates"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		_, err := Open(ctx, c.options)
		cancel()
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: Open: %v; want %q in it", name, err, c.want)
		}
	}
}

func TestAClusterMayAskForCertificates(t *testing.T) {
	log := zapLogger(slog.New(slog.DiscardHandler))
	cert, err := transport.SelfCert(log, t.TempDir(), []string{"127.0.0.1:0"}, 1, x509.ExtKeyUsageClientAuth)
	if err != nil {
		t.Fatal(err)
	}
	c := embeddedConfig(Options{DataDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	listen := url.URL{Scheme: "https", Host: "127.0.0.1:0"}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{listen}, []url.URL{listen}
	c.ClientTLSInfo = transport.TLSInfo{CertFile: cert.CertFile, KeyFile: cert.KeyFile, TrustedCAFile: cert.CertFile, ClientCertAuth: true}
	member, err := embed.StartEtcd(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(member.Close)
	endpoints := []string{"https://" + member.Clients[0].Addr().String()}

	s := open(t, Options{Endpoints: endpoints, CAFile: cert.CertFile, CertFile: cert.CertFile, KeyFile: cert.KeyFile})
	apply(t, s, put("a", "1"))
	for name, o := range map[string]Options{
		"no certificate": {Endpoints: endpoints, CAFile: cert.CertFile},
		"no authority":   {Endpoints: endpoints, CertFile: cert.CertFile, KeyFile: cert.KeyFile},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		if _, err := Open(ctx, o); err == nil || !strings.Contains(err.Error(), "does not answer") {
			t.Errorf("%s: Open: %v; want that it does not answer", name, err)
		}
		cancel()
	}
}

func TestPrefixesKeepStoresApart(t *testing.T) {
	endpoint := startEtcd(t)
	one := open(t, Options{Endpoints: []string{endpoint}, Prefix: "/one/"})
	two := open(t, Options{Endpoints: []string{endpoint}, Prefix: "/two/"})
	apply(t, one, put("a", "1"))
	if entries, _, err := two.List(t.Context(), ""); err != nil || len(entries) != 0 {
		t.Errorf("the other prefix holds %v (%v), want nothing", keys(entries), err)
	}
}

func TestAnEmbeddedStoreWarnsOfNothing(t *testing.T) {
	var log syncBuffer
	open(t, Options{DataDir: t.TempDir(), Log: slog.New(slog.NewTextHandler(&log, nil))})
	if text := log.String(); text != "" {
		t.Errorf("a plain start logs:\n%s", text)
	}
}

// syncBuffer is read while others write to it.
type syncBuffer struct {
	mu  sync.Mutex // guards below
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// TestOnlyHarmlessLinesAreLeftOut has lines as etcd writes them, some of them only now and then.
func TestOnlyHarmlessLinesAreLeftOut(t *testing.T) {
	noTerm := errors.New("missing term information")
	for _, tc := range []struct {
		level   zapcore.Level
		message string
		err     error
		passes  bool
	}{
		{zapcore.WarnLevel, "Failed to detect schema version", noTerm, false},
		{zapcore.ErrorLevel, "failed to update storage version", fmt.Errorf("cannot detect storage schema version: %w", noTerm), false},
		{zapcore.WarnLevel, "8e9e05c5 cannot campaign at term 1 since there are still pending configuration changes to apply", nil, false},
		{zapcore.InfoLevel, "anything else", nil, false},
		{zapcore.WarnLevel, "Failed to detect schema version", errors.New("disk on fire"), true},
		{zapcore.ErrorLevel, "failed to update storage version", errors.New("cannot downgrade storage"), true},
		{zapcore.ErrorLevel, "failed to update storage version", nil, true},
		{zapcore.WarnLevel, "apply request took too long", nil, true},
	} {
		var log bytes.Buffer
		zapLogger(slog.New(slog.NewTextHandler(&log, nil))).Log(tc.level, tc.message, zap.Error(tc.err))
		if passed := strings.Contains(log.String(), tc.message); passed != tc.passes {
			t.Errorf("%q with error %v: logged %q, want it logged: %v", tc.message, tc.err, log.String(), tc.passes)
		}
	}
}

func TestClosingTwiceIsClosingOnce(t *testing.T) {
	forEachBackend(t, func(t *testing.T, s *Store) {
		for range 2 {
			if err := s.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		}
	})
}

// BenchmarkOpen is how long a control plane waits for its embedded store, on a new directory and on an old one.
func BenchmarkOpen(b *testing.B) {
	for _, again := range []bool{false, true} {
		b.Run(fmt.Sprintf("existing=%v", again), func(b *testing.B) {
			root, n := b.TempDir(), 0
			for b.Loop() {
				n++
				o := Options{DataDir: filepath.Join(root, fmt.Sprint(n))}
				if again {
					o.DataDir = root
				}
				s, err := Open(b.Context(), o)
				if err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				s.Close()
				b.StartTimer()
			}
		})
	}
}

func BenchmarkApply(b *testing.B) {
	s, err := Open(b.Context(), Options{DataDir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	write := Write{Key: "a", Value: bytes.Repeat([]byte("x"), 512)}
	for b.Loop() {
		if _, err := s.Apply(b.Context(), []Write{write}); err != nil {
			b.Fatal(err)
		}
	}
}
