package cells

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
)

// Client is an SDK's client. Its methods are those of MCP, in the simplest form that the checks need.
type Client interface {
	Open(ctx context.Context, url string) (About, error)
	Close() error

	Tools(ctx context.Context, cursor string) (page []Tool, next string, err error)
	Prompts(ctx context.Context) (names []string, err error)
	Resources(ctx context.Context) (uris []string, err error)
	Templates(ctx context.Context) (uris []string, err error)

	Call(ctx context.Context, tool string, arguments any) (Result, error)
	Read(ctx context.Context, uri string) (textOrBase64 string, err error)
	Prompt(ctx context.Context, name string, arguments map[string]string) (text string, err error)
	Complete(ctx context.Context, r Reference, argument, value string) (values []string, err error)

	Subscribe(ctx context.Context, uri string) error
	Unsubscribe(ctx context.Context, uri string) error
	SetLevel(ctx context.Context, level string) error
	Ping(ctx context.Context) error

	// Code is the JSON-RPC code of an error, as far as the SDK shows it.
	Code(err error) int
}

// About is what a server says of itself.
type About struct {
	Version, Name, Instructions string
	Capabilities                json.RawMessage
}

// Result is that of a call.
type Result struct {
	Text       string
	Structured json.RawMessage
	IsError    bool
}

// Reference is what is to be completed: a prompt by its name, or a template by its URI.
type Reference struct{ Prompt, Template string }

// What a client answers to the questions of a server.
const (
	Owner    = "Ada Λ"
	Sampled  = "sampled 見本"
	RootURI  = "file:///cells/root"
	RootName = "root ✓"
)

// Elicited is the answer to an elicitation.
func (h *Heard) Elicited(mode, message, url string) (action string, content map[string]any) {
	if mode == "url" {
		h.note(func() { h.visited = url })
		return "accept", nil
	}
	if strings.HasSuffix(message, "decline") {
		return "decline", nil
	}
	return "accept", map[string]any{"owner": Owner}
}

// Heard is what a client was told beside its answers.
type Heard struct {
	mu      sync.Mutex // guards below
	logs    map[string]bool
	updated int
	changed map[string]int // by tools, prompts, resources
	visited string
}

// NewHeard has heard nothing.
func NewHeard() *Heard { return &Heard{logs: map[string]bool{}, changed: map[string]int{}} }

func (h *Heard) note(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
}

// Log is called for each log message.
func (h *Heard) Log(data string) { h.note(func() { h.logs[data] = true }) }

// Updated is called for each update of a resource.
func (h *Heard) Updated() { h.note(func() { h.updated++ }) }

// Changed is called when a list has: tools, prompts or resources.
func (h *Heard) Changed(list string) { h.note(func() { h.changed[list]++ }) }

func (h *Heard) updates() (n int) {
	h.note(func() { n = h.updated })
	return n
}

func (h *Heard) changes(list string) (n int) {
	h.note(func() { n = h.changed[list] })
	return n
}

func (h *Heard) allLogs() (all []string) {
	h.note(func() {
		for text := range h.logs {
			all = append(all, text)
		}
	})
	return all
}
