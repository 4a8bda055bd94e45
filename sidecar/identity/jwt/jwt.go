// Package jwt judges access tokens: JSON web tokens (RFC 7519, RFC 9068) that an issuer signed for this audience.
//
// An Issuers is a sidecar's, for its whole life: it has the keys of the issuers that Verifiers name, which it fetches and
// keeps fresh, and the tokens that it has verified, so both outlive a configuration. A token that was verified costs a hash,
// a lookup and a comparison from then on, until it expires or its key is withdrawn. An issuer that is down takes nobody's
// access away until the provider's `stale` has passed; one that was never reached lets nobody in.
//
// JOSE is go-jose's; before it sees a token, what two readers could read in two ways is refused: duplicate names in JSON,
// bytes that are not base64url, headers that name keys or extensions. No error and no log line has anything of a token.
//
// Everything here is safe for concurrent use. Not here: which requests carry tokens and what is answered (package authn).
package jwt

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"runtime"
	"sync"
	"time"
	"weak"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/background"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/fetch"
)

// Options are what an Issuers needs.
type Options struct {
	Log        *slog.Logger          // default: nowhere
	Registerer prometheus.Registerer // nil registers nothing
	Now        func() time.Time      // what tokens' times are held to; default time.Now

	dial func(ctx context.Context, network, address string) (net.Conn, error) // in tests: fetch.Options.Dial
}

// Issuers is the issuers of a sidecar, their keys, and the tokens that were verified.
type Issuers struct {
	// Set by New, never changed.
	log    *slog.Logger
	now    func() time.Time
	dial   func(ctx context.Context, network, address string) (net.Conn, error)
	tokens *cache
	tasks  *background.Tasks

	mu        sync.Mutex // guards below
	verifiers map[digest]weak.Pointer[Verifier]
	sources   map[digest]*source
	made      uint64 // Verifiers, so far
}

// digest tells Verifiers, or sources, with different settings apart.
type digest [sha256.Size]byte

// New makes an Issuers that knows no issuer yet.
func New(o Options) *Issuers {
	i := &Issuers{
		log: o.Log, now: o.Now, dial: o.dial, tokens: newCache(), tasks: background.New(),
		verifiers: make(map[digest]weak.Pointer[Verifier]), sources: make(map[digest]*source),
	}
	if i.log == nil {
		i.log = slog.New(slog.DiscardHandler)
	}
	if i.now == nil {
		i.now = time.Now
	}
	if o.Registerer != nil {
		o.Registerer.MustRegister(&collector{i})
	}
	return i
}

// Close ends what runs in the background and waits for it, within ctx. Keys that were fetched stay in use until they are
// too old.
func (i *Issuers) Close(ctx context.Context) error {
	i.tasks.Stop()
	return i.tasks.Wait(ctx)
}

// Spec is how tokens of one issuer are judged.
type Spec struct {
	Name     string                   // of the Identity's provider: it becomes Principal.Provider
	Provider *outriggerv1.JWTProvider // validated, with defaults (resource.WithDefaults)
	// Audiences are taken where the provider names none; one of the two is required.
	Audiences []string
}

// Verifier makes a Verifier, or returns the one that there is for an equal Spec, with all it has verified. Its issuer's
// keys are fetched from now on, until nothing refers to any Verifier of that issuer any more: the garbage collector tells. An
// error is of what the Spec says, as a caFile that cannot be read: whether the issuer can be reached shows later.
func (i *Issuers) Verifier(s Spec) (*Verifier, error) {
	p := s.Provider
	audiences := p.GetAudiences()
	if len(audiences) == 0 {
		audiences = s.Audiences
	}
	switch {
	case p.GetIssuer() == "" || p.GetRefresh().AsDuration() <= 0 || p.GetClaims() == nil || len(p.GetAlgorithms()) == 0:
		return nil, fmt.Errorf("provider %q: its defaults are not filled in", s.Name)
	case len(audiences) == 0:
		return nil, fmt.Errorf("provider %q: no audiences", s.Name)
	}
	algorithms, err := algorithmsOf(p)
	if err != nil {
		return nil, fmt.Errorf("provider %q: %w", s.Name, err)
	}
	roots, err := rootsOf(p)
	if err != nil {
		return nil, fmt.Errorf("provider %q: %w", s.Name, err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	id := digestOf(p, append([]string{s.Name, roots}, audiences...)...)
	if v := i.verifiers[id].Value(); v != nil {
		return v, nil
	}
	i.made++
	v := &Verifier{
		id: i.made, name: s.Name, issuer: p.GetIssuer(), audiences: audiences, algorithms: algorithms,
		skew: p.GetClockSkew().AsDuration(), paths: readPaths(p.GetClaims()), now: i.now, tokens: i.tokens,
	}
	from := digestOf(&outriggerv1.JWTProvider{
		Issuer: p.GetIssuer(), JwksUrl: p.GetJwksUrl(), Refresh: p.GetRefresh(), Stale: p.GetStale(),
		CaFile: p.GetCaFile(), PrivateAddresses: p.GetPrivateAddresses(),
	}, roots)
	if v.source, err = i.sourceLocked(from, p); err != nil {
		return nil, fmt.Errorf("provider %q: %w", s.Name, err)
	}
	i.rememberLocked(id, v)
	return v, nil
}

// sourceLocked is the source of a provider's keys, with one user more.
func (i *Issuers) sourceLocked(id digest, p *outriggerv1.JWTProvider) (*source, error) {
	s := i.sources[id]
	if s == nil {
		client, err := fetch.New(fetch.Options{
			CAFile: p.GetCaFile(), PrivateAddresses: p.GetPrivateAddresses(), Timeout: requestTimeout, MaxBytes: maxDocument, Dial: i.dial,
		})
		if err != nil {
			return nil, err
		}
		s = &source{
			issuer: p.GetIssuer(), refresh: p.GetRefresh().AsDuration(), limit: p.GetRefresh().AsDuration() + p.GetStale().AsDuration(),
			log: i.log, ctx: i.tasks.Context(), start: i.tasks.Run, fetcher: newFetcher(p.GetIssuer(), p.GetJwksUrl(), client),
		}
		s.unused = func() bool { return i.forget(id, s) }
		i.sources[id] = s
		i.tasks.Run(s.run)
	}
	s.users.Add(1)
	return s, nil
}

// rememberLocked lets an equal Spec find a Verifier for as long as somebody else refers to it.
func (i *Issuers) rememberLocked(id digest, v *Verifier) {
	maps.DeleteFunc(i.verifiers, func(_ digest, old weak.Pointer[Verifier]) bool { return old.Value() == nil })
	i.verifiers[id] = weak.Make(v)
	runtime.AddCleanup(v, func(s *source) { s.users.Add(-1) }, v.source)
}

// forget drops a source that has no user, and reports whether that was so.
func (i *Issuers) forget(id digest, s *source) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if s.users.Load() > 0 {
		return false
	}
	delete(i.sources, id)
	return true
}

// digestOf tells settings apart.
func digestOf(p *outriggerv1.JWTProvider, more ...string) (d digest) {
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(p)
	if err != nil {
		panic(err) // a message of plain fields always encodes, if its strings are UTF-8, which validation sees to
	}
	h := sha256.New()
	for _, part := range append(more, string(encoded)) {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		h.Write([]byte(part))
	}
	h.Sum(d[:0])
	return d
}

// rootsOf is what a provider's caFile holds: a file that has changed is another setting.
func rootsOf(p *outriggerv1.JWTProvider) (string, error) {
	if p.GetCaFile() == "" {
		return "", nil
	}
	pem, err := os.ReadFile(p.GetCaFile())
	if err != nil {
		return "", fmt.Errorf("caFile: %w", err)
	}
	return string(pem), nil
}
