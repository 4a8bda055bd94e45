package cells

import (
	"bytes"
	"io"
	"net/http"
	"sync"
)

const tapped = 64 << 10 // bytes that a tap keeps

// Tap is a transport that keeps what a client sent last, and the last bytes that reached it. It presents a credential, so
// that clients share nothing.
type Tap struct {
	credential string

	mu   sync.Mutex // guards below
	sent []byte
	got  []byte
}

// NewTap makes one for a client of that name.
func NewTap(name string) *Tap { return &Tap{credential: "Bearer " + name} }

// RoundTrip implements http.RoundTripper.
func (t *Tap) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", t.credential)
	if r.Body != nil {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		r.Body.Close()
		r.Body = io.NopCloser(bytes.NewReader(body))
		if len(body) > 0 {
			t.note(func() { t.sent = body })
		}
	}
	res, err := http.DefaultTransport.RoundTrip(r)
	if err == nil {
		res.Body = &tappedBody{res.Body, t}
	}
	return res, err
}

func (t *Tap) note(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f()
}

// Sent is what the client sent last.
func (t *Tap) Sent() (body string) {
	t.note(func() { body = string(t.sent) })
	return body
}

// Got is what reached the client since Clear.
func (t *Tap) Got() (text string) {
	t.note(func() { text = string(t.got) })
	return text
}

// Clear forgets what reached the client.
func (t *Tap) Clear() { t.note(func() { t.got = nil }) }

type tappedBody struct {
	io.ReadCloser
	tap *Tap
}

func (b *tappedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.tap.note(func() {
		b.tap.got = append(b.tap.got, p[:n]...)
		b.tap.got = b.tap.got[max(0, len(b.tap.got)-tapped):]
	})
	return n, err
}
