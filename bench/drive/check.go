package drive

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
)

// message is what is looked at of an answer that is not, byte for byte, the one expected.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Error  json.RawMessage `json:"error"`
	Result *result         `json:"result"`
}

// result is that of any method: only one of the lists is there.
type result struct {
	IsError  bool      `json:"isError"`
	Content  []content `json:"content"`  // tools/call
	Contents []content `json:"contents"` // resources/read
	Messages []struct {
		Content content `json:"content"`
	} `json:"messages"` // prompts/get
}

type content struct {
	Text string `json:"text"`
}

// text is a result's first text.
func (r *result) text() string {
	switch {
	case len(r.Content) > 0:
		return r.Content[0].Text
	case len(r.Contents) > 0:
		return r.Contents[0].Text
	case len(r.Messages) > 0:
		return r.Messages[0].Content.Text
	}
	return ""
}

// notification is how the messages before an answer begin, as most servers write them.
var notification = []byte(`{"jsonrpc":"2.0","method":"`)

// isNotification reports whether a message is none that answers.
func isNotification(data []byte) bool {
	if bytes.HasPrefix(data, notification) {
		return true
	}
	if !bytes.Contains(data, []byte(`"method"`)) {
		return false
	}
	var m message
	return json.Unmarshal(data, &m) == nil && m.Method != ""
}

// check compares an answer with what was asked. The null server's is right at once when it is so byte for byte; a proxy
// may have written the message anew, and then its text must be so. An answer that is like the last one that was right,
// but for the call's number, is right as well: a long list is not parsed again and again. Nor is a value that is known.
func (k *conn) check(r *request, got []byte) error {
	if r == nil {
		return errorOf(got)
	}
	held := true
	if k.c.Value != nil {
		got, held = k.withoutValue(got)
	}
	if held && (r.want.is(got) || k.known(got)) {
		return nil
	}
	wrong := func(want string, args ...any) error {
		return &wrongAnswer{k.number, fmt.Sprintf("%.400q", got), fmt.Sprintf(want, args...)}
	}
	var m message
	if err := json.Unmarshal(got, &m); err != nil {
		return wrong("a JSON-RPC message (%v)", err)
	}
	if string(m.ID) != strconv.FormatInt(k.number, 10) {
		return wrong("the id %d", k.number)
	}
	if m.Error != nil {
		return fmt.Errorf("%w: %.200s", errRefused, m.Error)
	}
	if m.Result == nil || m.Result.IsError {
		return wrong("a result that is no error")
	}
	if len(r.want.bytes) > 0 && !r.want.says(m.Result.text()) {
		return wrong("the text %q and %d bytes more", r.want.bytes[r.want.text:], r.want.pad)
	}
	if !bytes.Contains(got, []byte(k.c.Expect)) {
		return wrong("%q in it", k.c.Expect)
	}
	if !held {
		return wrong("the value of %d bytes in it", len(k.c.Value))
	}
	k.learn(got)
	return nil
}

// withoutValue is an answer with null in the place of the value that it must hold, in a buffer of the connection's; the
// answer as it is when it does not hold it.
func (k *conn) withoutValue(got []byte) (rest []byte, held bool) {
	at := bytes.Index(got, k.c.Value)
	if at < 0 {
		return got, false
	}
	k.rest = append(append(k.rest[:0], got[:at]...), "null"...)
	k.rest = append(k.rest, got[at+len(k.c.Value):]...)
	return k.rest, true
}

// known reports whether an answer is the last that was right, with this call's number wherever it had its own.
func (k *conn) known(got []byte) bool {
	if len(got) == 0 || len(k.right.bytes) != len(got) {
		return false
	}
	k.right.set(k.number)
	return bytes.Equal(got, k.right.bytes)
}

// learn keeps a right answer, with the places of its number.
func (k *conn) learn(got []byte) {
	number := strconv.AppendInt(nil, k.number, 10)
	k.right = template{append(k.right.bytes[:0], got...), k.right.numbers[:0]}
	for at := bytes.Index(got, number); at >= 0; {
		k.right.numbers = append(k.right.numbers, at)
		next := bytes.Index(got[at+len(number):], number)
		if next < 0 {
			return
		}
		at += len(number) + next
	}
}

// errorOf is the JSON-RPC error that an answer is, or nil.
func errorOf(got []byte) error {
	var m message
	if err := json.Unmarshal(got, &m); err != nil {
		return fmt.Errorf("answered %.200q: %w", got, err)
	}
	if m.Error != nil {
		return fmt.Errorf("%w: %.200s", errRefused, m.Error)
	}
	return nil
}

// checkEvents holds the events before the null server's answer to their number.
func (k *conn) checkEvents(r *request) error {
	if r == nil || r != &k.sse || !k.c.ofNull() || k.eventCount == int64(k.c.Events) {
		return nil
	}
	return &wrongAnswer{k.number, fmt.Sprintf("%d events before it", k.eventCount), strconv.Itoa(k.c.Events)}
}
