package federate

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// cursorPurpose is what cursors are sealed for.
const cursorPurpose = "list-cursor"

// list answers one page of a merged list.
func (s *Server) list(ctx context.Context, c *upstream.Call, k kind) (*upstream.Answer, error) {
	by := askerOf(c)
	n := s.fresh(k, by.scope)
	if n == nil {
		var err error
		if n, err = s.snapshot(ctx, k, by); err != nil {
			return nil, err
		}
	}
	page := 0
	if c.Message.Cursor.Present() {
		if page, n = s.openCursor(c, k, by.scope, n); n == nil {
			return invalidParams(c, "this cursor is not one of this list, or too old: list again from the beginning"), nil
		}
	}
	if err := s.refused(n); err != nil {
		return nil, err
	}
	return s.answerPage(c, k, n, page), nil
}

// answerPage is a page of a snapshot as an answer. The page itself is not copied.
func (s *Server) answerPage(c *upstream.Call, k kind, n *snapshot, page int) *upstream.Answer {
	head := append([]byte(`{"jsonrpc":"2.0","id":`), c.Message.ID.Of(c.Message.Raw)...)
	head = append(head, `,"result":`...)
	var tail []byte
	if page+1 < len(n.pages) {
		tail = append(tail, `,"nextCursor":"`...)
		tail = append(append(tail, s.sealCursor(c, k, n, page+1)...), '"')
	}
	tail = append(tail, `,"ttlMs":`...)
	tail = strconv.AppendInt(tail, max(0, time.Until(n.until).Milliseconds()), 10)
	scopeName := `"private"`
	if n.public {
		scopeName = `"public"`
	}
	tail = append(append(tail, `,"cacheScope":`...), scopeName...)
	tail = append(append(tail, n.meta...), `}}`...)
	return bodyOf(http.StatusOK, head, n.pages[page], tail)
}

// sealCursor is what leads to a page: for this caller, this kind of list and this order of its entries only.
func (s *Server) sealCursor(c *upstream.Call, k kind, n *snapshot, page int) string {
	return s.o.Sealer.Seal(cursorPurpose, binary.AppendUvarint(n.id[:len(n.id):len(n.id)], uint64(page)), s.cursorAAD(c, k))
}

func (s *Server) cursorAAD(c *upstream.Call, k kind) []byte {
	aad := append([]byte(s.o.Binding.GetName()), 0, byte(k))
	return append(aad, c.Principal...)
}

// openCursor finds the page that a client's cursor leads to; nil when it leads nowhere. The list of now will do when it has
// the same entries on the same pages, whichever sidecar of the fleet sealed the cursor.
func (s *Server) openCursor(c *upstream.Call, k kind, sc scope, now *snapshot) (page int, n *snapshot) {
	text, ok := rawjson.Text(c.Message.Cursor.Of(c.Message.Raw))
	if !ok {
		return 0, nil
	}
	b, err := s.o.Sealer.Open(cursorPurpose, text, s.cursorAAD(c, k))
	if err != nil || len(b) <= len(snapshotID{}) {
		return 0, nil
	}
	id := snapshotID(b)
	at, used := binary.Uvarint(b[len(id):])
	if n = now; n.id != id {
		n = s.snapshots.identified(k, sc, id)
	}
	if used <= 0 || n == nil || at >= uint64(len(n.pages)) {
		return 0, nil
	}
	return int(at), n
}

// bodyOf is an answer whose body is parts, one after the other.
func bodyOf(status int, parts ...[]byte) *upstream.Answer {
	b := &body{parts: net.Buffers(parts)}
	for _, p := range parts {
		b.length += int64(len(p))
	}
	return &upstream.Answer{Status: status, Length: b.length, Body: b}
}

// body reads parts without joining them.
type body struct {
	parts  net.Buffers
	length int64
}

func (b *body) Read(p []byte) (int, error)         { return b.parts.Read(p) }
func (b *body) WriteTo(w io.Writer) (int64, error) { return b.parts.WriteTo(w) }
func (b *body) Close() error                       { return nil }

// rewritten is a call with edits made in its message.
func rewritten(c *upstream.Call, edits ...mcp.Edit) (*upstream.Call, error) {
	m, err := mcp.ScanAnswer(rawjson.Splice(c.Message.Raw, edits...))
	if err != nil {
		return nil, err
	}
	return &upstream.Call{Message: &m, Header: c.Header, Principal: c.Principal, Caller: c.Caller, Binding: c.Binding}, nil
}

// hasExtension reports whether a client declares an extension of capabilities.
func hasExtension(c *upstream.Call, name string) bool {
	return rawjson.Find(c.Message.Raw, c.Message.ClientCapabilities, "extensions", name).Present()
}
