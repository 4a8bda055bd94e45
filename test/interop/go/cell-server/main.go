// cell-server is a server of the cells, which speaks one era alone:  cell-server [-2025] mcpgo|gosdk 127.0.0.1:PORT
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outrigger-mesh/outrigger/test/interop/go/cells"
)

var offer = cells.TheOffer

func main() {
	legacy := flag.Bool("2025", false, "speak the session-based wire, and not 2026-07-28")
	flag.Parse()
	handlers := map[string]func(legacy bool) http.Handler{"mcpgo": mcpgo, "gosdk": gosdk}
	handler := handlers[flag.Arg(0)]
	if handler == nil || flag.NArg() != 2 {
		log.Fatal("usage: cell-server [-2025] mcpgo|gosdk 127.0.0.1:PORT")
	}
	log.Fatal(http.ListenAndServe(flag.Arg(1), tap(handler(*legacy))))
}

// bazaar is what changes in a server.
type bazaar struct {
	mu        sync.Mutex // guards below
	grown     map[string]bool
	cancelled map[string]bool
}

// toggle reports whether a list has one entry more from now on.
func (b *bazaar) toggle(what string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.grown[what] = !b.grown[what]
	return b.grown[what]
}

// wait waits until ctx ends, and remembers a key then.
func (b *bazaar) wait(ctx context.Context, key string) string {
	select {
	case <-ctx.Done():
		b.mu.Lock()
		defer b.mu.Unlock()
		b.cancelled[key] = true
		return "cancelled"
	case <-time.After(20 * time.Second):
		return "nobody cancelled"
	}
}

func (b *bazaar) wasCancelled(key string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return fmt.Sprint(b.cancelled[key])
}

func newBazaar() *bazaar {
	return &bazaar{grown: map[string]bool{}, cancelled: map[string]bool{}}
}

// newest is the body of the newest request, a string.
var newest atomic.Value

// tap keeps each body as it came.
func tap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		newest.Store(string(body))
		next.ServeHTTP(w, r)
	})
}

var numberN = regexp.MustCompile(`"n":\s*(\d+)`)

// digits are those of n in the newest body.
func digits() json.RawMessage {
	body, _ := newest.Load().(string)
	if m := numberN.FindStringSubmatch(body); m != nil {
		return json.RawMessage(m[1])
	}
	return json.RawMessage("null")
}

// content is a resource's: text or base64, and whether there is one.
func content(uri string) (text, blob string, ok bool) {
	switch id, stall := strings.CutPrefix(uri, "bazaar://stall/"); {
	case uri == cells.NoteURI:
		return offer.Texts.Note, "", true
	case uri == cells.BytesURI:
		return "", offer.Texts.Bytes, true
	case stall:
		return "stall " + id, "", true
	}
	return "", "", false
}
