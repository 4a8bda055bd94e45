package proxy

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
	"github.com/outrigger-mesh/outrigger/sidecar/config"
	"github.com/outrigger-mesh/outrigger/sidecar/credential"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/session"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// retireTimeout is how long calls may go on at an endpoint that configuration replaced.
const retireTimeout = 5 * time.Minute

// table is a configuration, compiled: what a request looks up. It is not changed once stored.
type table struct {
	generation string
	config     *config.Config       // as it came
	endpoints  map[string]*endpoint // by path
	servers    map[string]*server   // by name: upstreams, and what is made of several of them
}

// server is an upstream that endpoints of the table share.
type server struct {
	upstream.Server
	name string
	spec *outriggerv1.Upstream // nil for what is made of several
	hash [sha256.Size]byte     // of its resource
	// mirrors is nil for servers over HTTP.
	mirrors *mirrors
	complaints

	retired []<-chan struct{} // each closed when a replaced endpoint's last call has ended; guarded by Proxy.applying
}

// endpoint is a binding, compiled.
type endpoint struct {
	// Set when compiled, never changed.
	name        string
	path        string
	spec        *outriggerv1.Binding
	hash        [sha256.Size]byte // of its resource
	server      *server
	stateless   upstream.Server // server, as stateless clients call it
	members     []*server       // of which server is made; nil when it is an upstream of its own
	sessions    *session.Store
	metrics     *telemetry.Binding
	hosts       map[string]bool
	origins     map[string]bool
	maxBody     int64
	limits      mcp.Limits
	readTimeout time.Duration
	keepAlive   time.Duration
	accessLog   bool
	via         string // Options.Via

	guarding guarding              // what sort of guard it has; another sort is another endpoint's
	guard    atomic.Pointer[guard] // nil: everyone may call everything
	audience audience              // of guard
	hints    hints

	ended context.Context // done once drain was called: open streams end
	drain context.CancelFunc
	use   use
}

// enter finds a path's endpoint and counts the request in. The endpoint may be replaced between the two: then its
// successor is taken. exchange.release counts it out.
func (p *Proxy) enter(path string) (*endpoint, error) {
	for {
		ep := p.table.Load().endpoints[path]
		if ep == nil {
			return nil, &refusal{status: http.StatusNotFound, code: mcp.CodeInvalidRequest, reason: "no_binding",
				message: "no binding of this sidecar serves this path"}
		}
		if ep.use.begin() {
			return ep, nil
		}
	}
}

// Check reports whether this sidecar lacks something that the resource needs. See config.Target.
func (p *Proxy) Check(o resource.Object) error {
	u, ok := o.(*outriggerv1.Upstream)
	if !ok {
		return nil
	}
	s, err := p.Dial(u, nil)
	if err != nil {
		return err
	}
	return s.Close(context.Background()) // it was not used: there is nothing to wait for
}

// Apply swaps to c. See config.Target.
func (p *Proxy) Apply(c *config.Config) []config.Refusal {
	p.applying.Lock()
	defer p.applying.Unlock()
	return p.applyLocked(c)
}

// Refresh applies what runs once more, so that what resources name without holding it, as credentials, is read again.
func (p *Proxy) Refresh() []config.Refusal {
	p.applying.Lock()
	defer p.applying.Unlock()
	if p.table.Load().generation == "" {
		return nil // nothing runs
	}
	return p.applyLocked(p.Running())
}

func (p *Proxy) applyLocked(c *config.Config) []config.Refusal {
	old := p.table.Load()
	next := &table{
		generation: c.Generation,
		config:     c,
		endpoints:  make(map[string]*endpoint, len(c.Bindings)),
		servers:    make(map[string]*server, len(c.Upstreams)),
	}
	var refused []config.Refusal
	secrets := credential.SecretsOf(c.Secrets)
	for _, u := range c.Upstreams {
		s, err := p.compileServer(u, secrets, old.servers[u.GetName()])
		if err != nil {
			refused = append(refused, config.Refusal{Kind: "Upstream", Name: u.GetName(), Reason: err.Error()})
		}
		if s != nil {
			next.servers[s.name] = s
		}
	}
	for _, b := range c.Bindings {
		if err := p.compileEndpoint(b, old, next); err != nil {
			refused = append(refused, config.Refusal{Kind: "Binding", Name: b.GetName(), Reason: err.Error()})
		}
	}
	refused = append(refused, p.guardAll(c, old, next)...)
	p.table.Store(next)
	p.publishMetadata(next)
	p.retire(old, next)
	if p.draining.Load() {
		next.drain()
	}
	log := p.Log.With("generation", c.Generation, "bindings", len(next.endpoints), "upstreams", len(next.servers))
	if len(refused) > 0 {
		log = log.With("refused_here", len(refused))
	}
	log.Info("configuration applied")
	return refused
}

// compileServer keeps the running server of an unchanged resource. With an error, the server returned is the last good
// one, or nil.
func (p *Proxy) compileServer(u *outriggerv1.Upstream, secrets credential.Secrets, running *server) (*server, error) {
	hash, err := p.serverHash(u, secrets)
	if err != nil {
		return running, err
	}
	if running != nil && running.hash == hash {
		return running, nil
	}
	s, err := p.Dial(u, secrets)
	if err != nil {
		return running, err
	}
	made := &server{Server: s, name: u.GetName(), spec: u, hash: hash}
	if u.GetStdio() != nil {
		made.mirrors = new(mirrors)
	}
	return made, nil
}

// compileEndpoint adds a binding's endpoint to next: the running one when nothing changed. A binding that cannot be
// compiled keeps its last good endpoint.
func (p *Proxy) compileEndpoint(b *outriggerv1.Binding, old, next *table) error {
	running := old.byName(b.GetName())
	ep, err := p.newEndpoint(b, running, next)
	if err == nil {
		next.endpoints[ep.path] = ep
		return nil
	}
	if running == nil || next.endpoints[running.path] != nil {
		return err
	}
	for _, s := range running.upstreams() {
		if next.servers[s.name] == nil {
			next.servers[s.name] = s
		}
	}
	if last, lastErr := p.newEndpoint(running.spec, running, next); lastErr == nil { // its server may be a new one
		next.endpoints[running.path] = last
	}
	return err
}

// drain makes open streams end in good order.
func (t *table) drain() {
	for _, ep := range t.endpoints {
		ep.drain()
	}
}

func (t *table) byName(binding string) *endpoint {
	for _, ep := range t.endpoints {
		if ep.name == binding {
			return ep
		}
	}
	return nil
}

func (p *Proxy) newEndpoint(b *outriggerv1.Binding, running *endpoint, next *table) (*endpoint, error) {
	if taken := next.endpoints[resource.BindingPath(b)]; taken != nil {
		return nil, fmt.Errorf("path %s is served by binding %q already", taken.path, taken.name)
	}
	members, err := next.upstreamsOf(b)
	if err != nil {
		return nil, err
	}
	hash, err := contentHash(b)
	if err != nil {
		return nil, err
	}
	guarding := next.guardingOf(b.GetName())
	if running != nil && running.hash == hash && running.guarding == guarding && slices.Equal(running.upstreams(), members) {
		next.servers[running.server.name] = running.server
		return running, nil
	}
	full := resource.WithDefaults(b)
	s, stateless, err := p.offer(full, members)
	if err != nil {
		return nil, err
	}
	if s == members[0] {
		members = nil
	}
	next.servers[s.name] = s
	ep := &endpoint{
		name: b.GetName(), path: full.GetPath(), spec: b, hash: hash, server: s, stateless: stateless, members: members,
		metrics: p.Metrics.Binding(b.GetName()),
		hosts:   make(map[string]bool), origins: make(map[string]bool),
		maxBody:     int64(full.GetLimits().GetMaxBodyBytes()),
		limits:      mcp.Limits{MaxDepth: int(full.GetLimits().GetMaxDepth())},
		readTimeout: full.GetLimits().GetReadTimeout().AsDuration(),
		keepAlive:   full.GetKeepAlive().AsDuration(),
		guarding:    guarding,
		accessLog:   full.GetAccessLog(),
		via:         p.Via,
	}
	for _, h := range full.GetHosts() {
		ep.hosts[hostname(h)] = true
	}
	for _, o := range full.GetOrigins() {
		ep.origins[o] = true
	}
	ep.use.over = make(chan struct{})
	ep.hints.asking = make(chan struct{}, 1)
	ep.ended, ep.drain = context.WithCancel(context.Background())
	ep.sessions = p.sessionsFor(ep, running, full.GetSession())
	return ep, nil
}

// sessionsFor is the running endpoint's sessions where what changed is no concern of theirs, else a place for new ones.
func (p *Proxy) sessionsFor(ep, running *endpoint, spec *outriggerv1.SessionSettings) *session.Store {
	settings := session.Settings{
		IdleTimeout: spec.GetIdleTimeout().AsDuration(),
		Max:         int(spec.GetMaxSessions()),
		ReplayBytes: int(spec.GetReplayBytes()),
	}
	if running != nil && running.server == ep.server && running.path == ep.path && running.sessions.Settings() == settings {
		return running.sessions
	}
	return session.NewStore(settings, p.Log.With("binding", ep.name))
}

// leaving is what a new configuration no longer has of one server.
type leaving struct {
	sessions []*session.Store  // of endpoints, unless their successors took them over
	server   bool              // the server too
	calls    []<-chan struct{} // closed when the calls have ended of every endpoint that was ever replaced
}

// retire closes what next no longer has, each when its last call has ended.
func (p *Proxy) retire(old, next *table) {
	gone := make(map[*server]*leaving)
	of := func(s *server) *leaving {
		if gone[s] == nil {
			gone[s] = &leaving{server: next.servers[s.name] != s}
		}
		return gone[s]
	}
	for path, ep := range old.endpoints {
		if next.endpoints[path] == ep {
			continue
		}
		ep.drain()
		ep.use.retire()
		for _, s := range append(slices.Clone(ep.members), ep.server) {
			s.retired = append(unfinished(s.retired), ep.use.over)
		}
		l := of(ep.server)
		heir := next.byName(ep.name)
		if heir == nil || heir.sessions != ep.sessions {
			l.sessions = append(l.sessions, ep.sessions)
		}
		if heir == nil {
			p.Metrics.Forget(ep.name)
			p.Callers.Forget(ep.name)
		}
	}
	for _, s := range old.servers {
		if next.servers[s.name] != s {
			of(s)
		}
	}
	for s, l := range gone {
		l.calls = s.retired
		p.retiring.Add(1)
		go p.finish(s, l)
	}
}

// unfinished are those of the channels that are not closed yet.
func unfinished(all []<-chan struct{}) (left []<-chan struct{}) {
	for _, over := range all {
		select {
		case <-over:
		default:
			left = append(left, over)
		}
	}
	return left
}

// finish waits for the calls of replaced endpoints, then closes their sessions, and the server if it was replaced too.
func (p *Proxy) finish(s *server, l *leaving) {
	defer p.retiring.Done()
	patience := time.NewTimer(retireTimeout)
	defer patience.Stop()
wait:
	for _, over := range l.calls {
		select {
		case <-over:
		case <-patience.C:
			break wait
		case <-p.closing:
			break wait
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	for _, st := range l.sessions {
		st.Close(ctx)
	}
	if l.server {
		p.closeServer(ctx, s)
	}
}

// closeTimeout bounds the orderly end of a replaced endpoint's sessions and server.
const closeTimeout = 15 * time.Second

// serverHash is over a resource and what it names without holding it, so that a credential that was replaced in its
// place is taken up by the next configuration, or by the same one read again.
func (p *Proxy) serverHash(u *outriggerv1.Upstream, secrets credential.Secrets) ([sha256.Size]byte, error) {
	hash, err := contentHash(u)
	if err != nil || p.Outside == nil {
		return hash, err
	}
	outside, err := p.Outside(u, secrets)
	return sha256.Sum256(append(hash[:], outside...)), err
}

func contentHash(m proto.Message) ([sha256.Size]byte, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	return sha256.Sum256(b), err
}
