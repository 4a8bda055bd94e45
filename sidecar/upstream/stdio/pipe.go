package stdio

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream/mailbox"
)

// grace is how long after its end a server may still say things on a call's or a session's behalf: so long, what names
// nobody is given to nobody.
const grace = time.Second

// router takes what a server says of its own accord.
type router interface {
	// route takes a request, or a notification other than progress. It runs on the pipe's reader and never blocks;
	// m is valid until it returns.
	route(p *pipe, m *mcp.Message)
	// ended is called once, when the process is gone.
	ended(p *pipe)
}

// pipe is one process and the calls in flight on it. One goroutine reads, one writes.
//
// Every request gets an id of the pipe's own, so clients' ids never meet, and a client's progress token is replaced by
// that same number; both are restored with their JSON type. The rest of a message is not changed.
type pipe struct {
	// Set by newPipe, never changed.
	name   string
	log    *slog.Logger
	proc   *process
	out    *outbox
	lines  *lineReader
	noise  *lineLog      // owned by the reader
	broken chan struct{} // closed when no more answers will come
	done   chan struct{} // closed when the process is reaped and both goroutines are gone

	// Set by whoever starts the pipe before it is shared.
	era mcp.Era

	lastID  atomic.Int64
	dropped atomic.Int64 // messages that named nobody and could be any of several clients'

	mu     sync.Mutex // guards below; a router's own lock is taken before it
	router router
	calls  map[string]*call // by our id's token
	lost   bool
	ended  time.Time // when a call that might have logged last ended
}

func newPipe(name string, log *slog.Logger, proc *process, maxLine int, r router) *pipe {
	p := &pipe{
		name: name, log: log, proc: proc, out: newOutbox(), router: r,
		lines: newLineReader(proc.stdout, maxLine), noise: newLineLog(log, "server wrote what is not MCP"),
		broken: make(chan struct{}), done: make(chan struct{}), calls: map[string]*call{},
	}
	written := make(chan struct{})
	go func() {
		defer close(written)
		p.write()
	}()
	go func() {
		defer close(p.done)
		p.read()
		p.breakDown()
		p.proc.stop(context.Background())
		<-written
		p.proc.stdout.Close()
		<-p.proc.logged
		p.routerNow().ended(p)
	}()
	return p
}

// become changes who takes what the server says of its own accord.
func (p *pipe) become(era mcp.Era, r router) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.era, p.router = era, r
}

func (p *pipe) routerNow() router {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.router
}

func (p *pipe) isBroken() bool {
	select {
	case <-p.broken:
		return true
	default:
		return false
	}
}

// stop ends the process and returns when all of it is gone. Calls in flight fail at once.
func (p *pipe) stop(ctx context.Context) {
	p.breakDown()
	p.proc.stop(ctx)
	<-p.done
}

// breakDown fails every call in flight and refuses new ones. A call that was still queued certainly never happened.
func (p *pipe) breakDown() {
	p.mu.Lock()
	if p.lost {
		p.mu.Unlock()
		return
	}
	p.lost = true
	calls := p.calls
	p.calls = map[string]*call{}
	p.mu.Unlock()

	close(p.broken)
	for _, k := range calls {
		k.disarm()
		if p.out.withdraw(k.parcel) {
			k.box.Fail(p.fault(upstream.Unreachable, "its process ended before the call was sent", nil))
		} else {
			k.box.Fail(p.fault(upstream.Lost, "its process ended before it answered", nil))
		}
	}
	p.out.close()
}

func (p *pipe) fault(kind upstream.Kind, detail string, cause error) error {
	return &upstream.Error{Kind: kind, Upstream: p.name, Detail: detail, Cause: cause}
}

func (p *pipe) write() {
	for {
		parcel := p.out.next()
		if parcel == nil {
			return
		}
		if _, err := p.proc.stdin.Write(parcel.data); err != nil {
			p.log.Info("server takes no more input", "error", err)
			p.proc.stdout.SetReadDeadline(time.Now().Add(drainTime)) // it may have answered before
			return
		}
		parcel.data = nil // the call may live for long; its bytes need not
	}
}

func (p *pipe) read() {
	defer p.noise.flush()
	for {
		l, err := p.lines.next()
		if err != nil {
			return
		}
		p.receive(l)
	}
}

// receive handles one line. What is not a message is logged and skipped. A line that is too long, or that answers a
// call in a way that cannot be read, fails that call when its id can be made out, and the pipe goes on: one bad answer
// must not cost the other clients theirs. Otherwise the call ends with its own timeout.
func (p *pipe) receive(l line) {
	text := bytes.TrimSpace(l.data)
	if len(text) == 0 {
		return
	}
	if l.long {
		p.fail(l.legibleID(), p.fault(upstream.Overloaded, fmt.Sprintf("its answer is longer than %d bytes", p.lines.max), nil))
		p.noise.add(text, true)
		return
	}
	m, err := mcp.ScanAnswer(text)
	switch {
	case err != nil:
		p.fail(l.idDespite(err), p.fault(upstream.BadAnswer, "its answer is not JSON-RPC", err))
		p.noise.add(text, false)
	case m.Kind == mcp.Response:
		p.respond(&m)
	case m.Kind == mcp.Notification && m.Method == mcp.NotificationProgress:
		p.progress(&m)
	default:
		p.routerNow().route(p, &m)
	}
}

// respond gives a response to its call. One that nobody waits for any more is ignored.
func (p *pipe) respond(m *mcp.Message) {
	k := p.take(string(m.ID.Of(m.Raw)))
	if k == nil {
		return
	}
	edits := []mcp.Edit{{Span: m.ID, With: k.id}}
	if k.listens && m.SubscriptionID.Present() {
		edits = append(edits, mcp.Edit{Span: m.SubscriptionID, With: k.id})
	}
	k.box.Finish(splice(m.Raw, edits...))
}

// progress gives a progress notification to the call that asked for it.
func (p *pipe) progress(m *mcp.Message) {
	k := p.find(string(m.ProgressToken.Of(m.Raw)))
	if k == nil || k.token == nil {
		return
	}
	k.box.Put(splice(m.Raw, mcp.Edit{Span: m.ProgressToken, With: k.token}))
}

// fail ends the call with our id key, if there is one.
func (p *pipe) fail(key []byte, why error) {
	if k := p.take(string(key)); k != nil {
		k.box.Fail(why)
	}
}

// begin sends a request. The call ends with its response, with ctx, after timeout (0: none), or with the process.
func (p *pipe) begin(ctx context.Context, m *mcp.Message, o order) (*call, error) {
	k := &call{
		pipe: p, method: m.Method, owner: o.owner, ours: o.ours, box: mailbox.New(p.log, heldBytes),
		id: bytes.Clone(m.ID.Of(m.Raw)), token: bytes.Clone(m.ProgressToken.Of(m.Raw)),
		logs: m.LogLevel.Present(), listens: m.Method == mcp.MethodListen,
	}
	k.seq = p.lastID.Add(1)
	k.key = strconv.FormatInt(k.seq, 10)
	k.parcel = &parcel{data: k.encode(m)}

	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost {
		return nil, p.fault(upstream.Unreachable, "its process ended before the call was sent", nil)
	}
	if !p.out.put(k.parcel) {
		return nil, p.fault(upstream.Overloaded, "too many messages wait for its process", nil)
	}
	p.calls[k.key] = k
	k.armLocked(ctx, o.timeout)
	return k, nil
}

// take removes a call from those in flight; nil when it is not, or no longer, one of them.
func (p *pipe) take(key string) *call {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := p.calls[key]
	if k != nil {
		delete(p.calls, key)
		k.disarm()
		if k.mayLog() {
			p.ended = time.Now()
		}
	}
	return k
}

// only is the one call that a log message can come from; nil when there are several, or were just now. Whether two
// calls are one client's the stateless wire does not say.
func (p *pipe) only() *call {
	p.mu.Lock()
	ended := p.ended
	p.mu.Unlock()
	if calls := p.matching((*call).mayLog); len(calls) == 1 && time.Since(ended) >= grace {
		return calls[0]
	}
	return nil
}

// drop counts a message that could be any of several clients'.
func (p *pipe) drop(m *mcp.Message) {
	p.log.Debug("message dropped, since it does not say which client it is for", "method", m.Method, "dropped", p.dropped.Add(1))
}

func (p *pipe) find(key string) *call {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls[key]
}

// matching returns the calls in flight that fit, oldest first.
func (p *pipe) matching(fits func(*call) bool) (found []*call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range p.calls {
		if fits(k) {
			found = append(found, k)
		}
	}
	sortCalls(found)
	return found
}

// notify sends a notification or a client's response as it came.
func (p *pipe) notify(m *mcp.Message) error {
	switch {
	case p.isBroken():
		return p.fault(upstream.Unreachable, "its process ended before the message was sent", nil)
	case !p.out.put(&parcel{data: asLine(bytes.Clone(m.Raw))}):
		return p.fault(upstream.Overloaded, "too many messages wait for its process", nil)
	}
	return nil
}

// cancel ends the call of owner's that a client's notifications/cancelled names. An id that names none is ignored.
func (p *pipe) cancel(m *mcp.Message, owner any) {
	id := m.RequestID.Of(m.Raw)
	for _, k := range p.matching(func(k *call) bool { return k.owner == owner && bytes.Equal(k.id, id) }) {
		notice := asLine(splice(m.Raw, mcp.Edit{Span: m.RequestID, With: []byte(k.key)}))
		k.abandon(errCancelled, notice)
	}
}

// ask makes a request of our own and returns the response.
func (p *pipe) ask(ctx context.Context, request string) ([]byte, error) {
	k, err := p.request(ctx, request, 0)
	if err != nil {
		return nil, err
	}
	response, err := k.box.Response()
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, p.fault(upstream.TimedOut, k.method+" was not answered in time", err)
	}
	return response, err
}

// request begins a request of our own.
func (p *pipe) request(ctx context.Context, request string, timeout time.Duration) (*call, error) {
	m, err := mcp.Scan([]byte(request), mcp.Limits{})
	if err != nil {
		return nil, fmt.Errorf("request %s: %w", request, err)
	}
	return p.begin(ctx, &m, order{timeout: timeout, ours: true})
}

// answer replies to a request of the server's that is ours to answer: pings live here, and there is nobody to ask
// anything else.
func (p *pipe) answer(m *mcp.Message) {
	id := m.ID.Of(m.Raw)
	reply := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":"no client to ask"}}`+"\n", id, mcp.CodeMethodNotFound)
	if m.Method == mcp.MethodPing {
		reply = fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`+"\n", id)
	}
	p.out.putUrgent([]byte(reply))
}
