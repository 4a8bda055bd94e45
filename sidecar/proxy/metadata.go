package proxy

import (
	"net/http"
	"strconv"

	"github.com/outrigger-mesh/outrigger/sidecar/identity/authn"
)

// metadata are the protected-resource metadata of a table's endpoints (RFC 9728), by path. One document is one endpoint's;
// a path that two of them would have belongs to none.
func (t *table) metadata() map[string][]byte {
	documents := make(map[string][]byte)
	for _, ep := range t.endpoints {
		g := ep.guard.Load()
		if g == nil || g.callers == nil || g.callers.Metadata() == nil {
			continue
		}
		for _, path := range authn.MetadataPaths(ep.spec.GetExternalUrl()) {
			if _, taken := documents[path]; taken {
				documents[path] = nil
				continue
			}
			documents[path] = g.callers.Metadata()
		}
	}
	return documents
}

// publishMetadata has the metadata of a table answered from now on.
func (p *Proxy) publishMetadata(t *table) {
	documents := t.metadata()
	if len(documents) == 0 {
		p.documents.Store(nil)
		return
	}
	p.documents.Store(&documents)
}

// serveMetadata answers for a well-known path, and reports whether it is one. Pages of other origins may read it, as a
// client in a browser has to.
func (x *exchange) serveMetadata() bool {
	documents := x.p.documents.Load()
	if documents == nil {
		return false
	}
	document := (*documents)[x.r.URL.Path]
	if document == nil || x.r.Method != http.MethodGet && x.r.Method != http.MethodHead {
		return false
	}
	x.label = x.r.Method
	h := x.w.Header()
	h["Content-Type"] = jsonType
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Cache-Control", "max-age=300")
	h.Set("Content-Length", strconv.Itoa(len(document)))
	x.writeHeader(http.StatusOK)
	if x.r.Method == http.MethodGet {
		_ = x.write(document) // a client that is gone cannot be told
	}
	return true
}
