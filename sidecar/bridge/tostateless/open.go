package tostateless

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// mint makes a session of our own for a client's initialize.
func (s *Server) mint(ctx context.Context, c *upstream.Call) (upstream.Session, *upstream.Answer, error) {
	m := c.Message
	version := mcp.NewestLegacy
	if mcp.IsLegacyVersion(string(m.Version)) {
		version = string(m.Version)
	}
	capabilities := adapted(m.Raw, rawjson.Find(m.Raw, m.Params, "capabilities"), version)
	meta := metaMembers(rawjson.Find(m.Raw, m.Params, "clientInfo").Of(m.Raw), capabilities)
	result, refused, err := s.discover(ctx, c, meta, string(capabilities))
	switch {
	case err != nil:
		return nil, nil, err
	case refused != nil:
		return nil, upstream.Whole(200, legacyError(refused, m.ID.Of(m.Raw))), nil
	}
	session := newSession(s, c, version, meta, declaredBy(capabilities), offeredBy(result))
	if !s.add(session) {
		return nil, nil, s.fault(upstream.Lost, "the upstream was removed", nil)
	}
	return session, resultAnswer(m, s.initializeResult(result, version)), nil
}

// metaMembers is what every request of a session has in its _meta, as members without the braces.
func metaMembers(clientInfo, capabilities []byte) []byte {
	b := []byte(`"` + mcp.MetaKeyVersion + `":"` + mcp.Version20260728 + `",`)
	if rawjson.IsObject(clientInfo) {
		b = append(append(append(b, `"`+mcp.MetaKeyClientInfo+`":`...), clientInfo...), ',')
	}
	return append(append(b, `"`+mcp.MetaKeyClientCapabilities+`":`...), capabilities...)
}

// initializeResult is a DiscoverResult as an answer to initialize. Of its _meta all stays but serverInfo, which has a
// place of its own here.
func (s *Server) initializeResult(discover []byte, version string) []byte {
	all := rawjson.Whole(discover)
	b := append([]byte(`{"protocolVersion":"`), version...)
	b = append(b, `","capabilities":`...)
	b = append(b, legacyCapabilities(discover, rawjson.Find(discover, all, "capabilities"))...)
	b = append(b, `,"serverInfo":`...)
	b = append(b, s.serverInfo(rawjson.Find(discover, all, "_meta", mcp.MetaKeyServerInfo).Of(discover))...)
	if text := rawjson.Find(discover, all, "instructions").Of(discover); rawjson.IsString(text) {
		b = append(append(b, `,"instructions":`...), text...)
	}
	if meta := rawjson.Find(discover, all, "_meta"); rawjson.IsObject(meta.Of(discover)) {
		kept, left := rawjson.Rewrite(nil, discover, meta, func(m rawjson.Member) ([]byte, bool) {
			return nil, string(m.Name) != mcp.MetaKeyServerInfo
		})
		if left {
			b = append(append(b, `,"_meta":`...), kept...)
		}
	}
	return append(b, '}')
}

// serverInfo is what the server calls itself, or a name for it: InitializeResult has to have one.
func (s *Server) serverInfo(said []byte) []byte {
	if rawjson.IsObject(said) {
		_, named := rawjson.Text(rawjson.Find(said, rawjson.Whole(said), "name").Of(said))
		_, versioned := rawjson.Text(rawjson.Find(said, rawjson.Whole(said), "version").Of(said))
		if named && versioned {
			return said
		}
	}
	b := append([]byte(`{"name":`), rawjson.AppendString(nil, s.o.Name)...)
	b = append(append(b, `,"version":`...), rawjson.AppendString(nil, s.o.Version)...)
	return append(b, '}')
}

const (
	maxDiscoveries  = 256         // kept at a time; then they are all forgotten
	maxDiscoveryAge = time.Minute // whatever the server's ttlMs says
)

// discoveries keeps answers to server/discover as long as they say, but for a minute at most: clients come in crowds.
type discoveries struct {
	mu   sync.Mutex // guards below
	kept map[discoveryKey]discovery
}

// discoveryKey is for whom an answer was: what a server has may depend on who asks, and on what that one declares.
type discoveryKey struct{ principal, capabilities string }

type discovery struct {
	result []byte
	until  time.Time
}

func (d *discoveries) get(k discoveryKey) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	if found, ok := d.kept[k]; ok && time.Now().Before(found.until) {
		return found.result
	}
	return nil
}

func (d *discoveries) put(k discoveryKey, result []byte) {
	age := min(ttlOf(result), maxDiscoveryAge)
	if age <= 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.kept == nil || len(d.kept) >= maxDiscoveries {
		d.kept = make(map[discoveryKey]discovery)
	}
	d.kept[k] = discovery{result, time.Now().Add(age)}
}

// ttlOf is how long a result may be used again; 0 when it does not say.
func ttlOf(result []byte) time.Duration {
	var ms int64
	if json.Unmarshal(rawjson.Find(result, rawjson.Whole(result), "ttlMs").Of(result), &ms) != nil || ms < 0 {
		return 0
	}
	return time.Duration(min(ms, int64(maxDiscoveryAge/time.Millisecond))) * time.Millisecond
}

// discover asks the server what it has. It returns the result, or the error that the server gave.
func (s *Server) discover(ctx context.Context, c *upstream.Call, meta []byte, capabilities string) (result []byte, refused *mcp.Message, err error) {
	key := discoveryKey{c.Principal, capabilities}
	if kept := s.discoveries.get(key); kept != nil {
		return kept, nil, nil
	}
	ctx, stop := context.WithTimeout(ctx, s.o.Handshake)
	defer stop()
	m, err := s.request(mcp.MethodDiscover, nil, meta)
	if err != nil {
		return nil, nil, err
	}
	a, err := s.inner.Call(ctx, &upstream.Call{Message: &m, Header: headerFor(&m, c.Header), Principal: c.Principal, Caller: c.Caller})
	if err != nil {
		return nil, nil, forLegacy(err)
	}
	r, err := s.readResponse(a)
	switch {
	case err != nil:
		return nil, nil, err
	case r.Error.Present():
		return nil, &r, nil
	}
	if result = r.Result.Of(r.Raw); !rawjson.IsObject(result) {
		return nil, nil, s.fault(upstream.BadAnswer, "answered server/discover with something else than an object", nil)
	}
	s.discoveries.put(key, result)
	return result, nil, nil
}

// request makes a request of our own. params are members, each with a comma behind it.
func (s *Server) request(method string, params, meta []byte) (mcp.Message, error) {
	return mcp.ScanAnswer(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"method":%q,"params":{%s"_meta":{%s}}}`, s.newID(), method, params, meta))
}

// newID is the id of a request that no client made.
func (s *Server) newID() []byte { return fmt.Appendf(nil, `"outrigger-%d"`, s.lastID.Add(1)) }
