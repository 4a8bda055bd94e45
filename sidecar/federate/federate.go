// Package federate offers several MCP servers as one.
//
// A Server is an upstream.Server over others, its members. It speaks the stateless wire only: a member of the other wire
// is bridged before, and clients of the other wire after. A call of a tool, a prompt or a resource goes to the member that
// has it, under the name that it has there; lists are the members' lists, merged, cached and named so that names do not
// clash; a listen is one stream out of the members' streams. A Lone is the same for one server that is offered as it is:
// nothing of it is merged or renamed, but its tasks belong to their callers, too.
//
// One life: a client lists tools. The snapshot for its scope is there and fresh, so its bytes are the answer. When it is
// not, every member is asked at once, each with its own deadline; what a member cannot give is its last list, for a
// while, and then nothing: the answer says so in _meta["dev.outrigger/partialFailure"]. No member ever waits for another.
//
// A Server is safe for concurrent use. Its goroutines are one per member that watches for changed lists, and one more per
// member for each scope whose clients listen for them; one per list being fetched; and one per member that has resources or
// tasks of an open listen. Close waits for them. Not here: the members' own lives, which are their owner's, what clients may
// see (policy), and whether a federation contains itself.
package federate

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/budget"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/seal"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// maxCapabilities is the longest declaration of a client's capabilities that is taken, in bytes: lists are kept by it.
const maxCapabilities = 16 << 10

// MetaPartialFailure is the key under which a merged answer says what it lacks: an array of {"upstream", "reason"}, with
// "stale": true where the upstream's last list stands in.
const MetaPartialFailure = "dev.outrigger/partialFailure"

// MetaLeftOut is the key under which a merged list says which entries it has not, since another has their name or URI, or
// since they have none: an array of {"upstream", "name"}, at most maxLeftOut of them.
const MetaLeftOut = "dev.outrigger/leftOut"

// Member is one of the servers.
type Member struct {
	Name   string // the Upstream's
	Prefix string // before the names of its tools and prompts, followed by "_"
	Server upstream.Server
}

// Options say how members are offered. All but the budgets are required.
type Options struct {
	// Binding has names, lists and partialFailure, with defaults filled in.
	Binding *outriggerv1.Binding
	Log     *slog.Logger
	Sealer  *seal.Sealer
	// Name and Version are what the federation calls itself in discovery and to its members.
	Name, Version string

	// Answers bounds what is read of members' lists and not kept yet, and of answers about tasks until clients have them, of
	// this Server and of whoever else has it; default: none. A list for which there is no room is missing.
	Answers *budget.Budget
	// Lists bounds the lists that are kept, likewise: beyond it only the newest of each kind are.
	Lists *budget.Budget
}

func (o Options) taskIDs() taskIDs {
	return taskIDs{binding: o.Binding.GetName(), sealer: o.Sealer, answers: o.Answers}
}

// Server offers its members as one.
type Server struct {
	o       Options
	names   namer
	tasks   taskIDs
	members []*member

	ctx  context.Context // done once Close was called
	stop context.CancelFunc
	work sync.WaitGroup // goroutines of its own

	epoch     atomic.Uint64 // counts invalidations: a snapshot of an older one is looked at again
	requests  atomic.Uint64 // ids of requests of its own
	snapshots snapshots
	merging   [32]sync.Mutex // see mergingOf; taken before any other lock
	seed      maphash.Seed   // for them
	watching  sync.Once

	mu     sync.Mutex // guards below
	found  map[place]*member
	hashed map[string]target // names that end in a hash, where all have prefixes
	feeds  map[feedKey]*feed
}

// member is a Member with what is known of it.
type member struct {
	Member
	lists cache
}

// New offers members, in the order in which they are declared. It reaches for nothing.
func New(members []Member, o Options) *Server {
	s := &Server{o: o, names: newNamer(o.Binding.GetNames()), tasks: o.taskIDs(), found: make(map[place]*member), hashed: make(map[string]target), feeds: make(map[feedKey]*feed), seed: maphash.MakeSeed()}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.snapshots.init(o.Lists)
	for _, m := range members {
		s.members = append(s.members, &member{Member: m, lists: newCache(o.Lists)})
	}
	return s
}

// Eras implements upstream.Server.
func (s *Server) Eras(context.Context) (mcp.Eras, error) { return mcp.EraSet(mcp.Stateless), nil }

// Open implements upstream.Server: there are no sessions here.
func (s *Server) Open(context.Context, *upstream.Call) (upstream.Session, *upstream.Answer, error) {
	return nil, nil, &upstream.Error{Kind: upstream.WrongEra, Upstream: s.o.Binding.GetName(), Detail: "a federation has no sessions"}
}

// Check implements upstream.Server: it is ready as soon as a member is. One that is not does not take the others out, and
// is not waited for.
func (s *Server) Check(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make([]error, len(s.members))
	var ready atomic.Bool
	var wait sync.WaitGroup
	for i, m := range s.members {
		wait.Go(func() {
			if failed[i] = m.Server.Check(ctx); failed[i] == nil {
				ready.Store(true)
				cancel()
			}
		})
	}
	wait.Wait()
	if ready.Load() {
		return nil
	}
	return s.notReady(failed)
}

// notReady says of each member why it is not ready: operators read it.
func (s *Server) notReady(failed []error) error {
	texts := make([]string, len(failed))
	for i, err := range failed {
		texts[i] = fmt.Sprintf("upstream %q: %v", s.members[i].Name, err)
		var known *upstream.Error
		if errors.As(err, &known) {
			texts[i] = known.Error()
			if known.Cause != nil {
				texts[i] += ": " + known.Cause.Error()
			}
		}
	}
	return fmt.Errorf("binding %q: none of its upstreams is ready: %s", s.o.Binding.GetName(), strings.Join(texts, "; "))
}

// Close ends what the federation does on its own. Its members are not its to close.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock() // nothing is started any more
	s.stop()
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		s.work.Wait()
		s.snapshots.close()
		for _, m := range s.members {
			m.lists.close()
		}
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Call implements upstream.Server.
func (s *Server) Call(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	if c.Message.Kind != mcp.Request {
		return &upstream.Answer{Status: http.StatusAccepted}, nil // the wire has no notification that a server needs
	}
	if n := c.Message.ClientCapabilities; n.End-n.Start > maxCapabilities {
		return invalidParams(c, "the client's capabilities are too long"), nil
	}
	a, err := s.answer(upstream.WithVia(ctx, c.Header), c)
	if err != nil {
		return nil, s.named(err)
	}
	return a, nil
}

// named makes an error of the end of a wait, which is the caller's doing or nobody's: no member is at fault for it.
func (s *Server) named(err error) error {
	var known *upstream.Error
	switch {
	case errors.As(err, &known):
		return err
	case errors.Is(err, context.DeadlineExceeded):
		return &upstream.Error{Kind: upstream.TimedOut, Upstream: s.o.Binding.GetName(), Detail: "no answer in time", Cause: err}
	case errors.Is(err, context.Canceled):
		return &upstream.Error{Kind: upstream.Lost, Upstream: s.o.Binding.GetName(), Detail: "the call was cancelled", Cause: err}
	}
	return err
}

func (s *Server) answer(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	switch c.Message.Method {
	case mcp.MethodDiscover:
		return s.discover(ctx, c)
	case mcp.MethodToolsList:
		return s.list(ctx, c, tools)
	case mcp.MethodPromptsList:
		return s.list(ctx, c, prompts)
	case mcp.MethodResourcesList:
		return s.list(ctx, c, resources)
	case mcp.MethodResourceTemplatesList:
		return s.list(ctx, c, templates)
	case mcp.MethodToolsCall:
		return s.callTool(ctx, c)
	case mcp.MethodPromptsGet:
		return s.getPrompt(ctx, c)
	case mcp.MethodResourcesRead:
		return s.read(ctx, c)
	case mcp.MethodComplete:
		return s.complete(ctx, c)
	case mcp.MethodListen:
		return s.listen(ctx, c)
	case mcp.MethodTasksGet, mcp.MethodTasksUpdate, mcp.MethodTasksCancel:
		return s.task(ctx, c)
	}
	return refuse(c, http.StatusNotFound, mcp.CodeMethodNotFound, "this endpoint offers several servers, and none of their methods of this name"), nil
}

// invalidate makes what is known of a member's lists of some kinds be looked at again: of all callers, or of one scope and
// of what everybody has.
func (s *Server) invalidate(m *member, all bool, sc scope, kinds ...kind) {
	for _, k := range kinds {
		m.lists.expire(k, all, sc)
		if k == resources {
			s.forgetFound()
		}
	}
	s.epoch.Add(1)
}

// timeout is how long a member may take for a list.
func (s *Server) timeout() time.Duration { return s.o.Binding.GetLists().GetTimeout().AsDuration() }
