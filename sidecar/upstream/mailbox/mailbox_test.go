package mailbox

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newBox(mostBytes int) *Box { return New(slog.New(slog.DiscardHandler), mostBytes) }

func TestAMailboxDropsTheOldestButNotTheResponse(t *testing.T) {
	b := newBox(1 << 20)
	for i := range Most + 10 {
		b.Put(fmt.Append(nil, i))
	}
	b.Finish([]byte("response"))
	b.Put([]byte("late"))
	for i := range Most + 1 {
		data, last, err := b.Next(nil)
		want := fmt.Sprint(i + 10)
		if i == Most {
			want = "response"
		}
		if string(data) != want || last != (i == Most) || err != nil {
			t.Fatalf("message %d is %q, last %v, error %v, want %q", i, data, last, err, want)
		}
	}
	if data, _, err := b.Next(nil); err != io.EOF {
		t.Errorf("after the response came %q, %v", data, err)
	}
}

func TestOnlyNotificationsGiveWay(t *testing.T) {
	b := newBox(1 << 20)
	for i := range Most {
		if i%2 == 0 {
			b.Put([]byte("notification"))
		} else if !b.PutRequest([]byte("request")) {
			t.Fatalf("message %d was refused", i)
		}
	}
	for i := range Most/2 + 1 {
		if taken := b.PutRequest([]byte("request")); taken != (i < Most/2) {
			t.Fatalf("request %d beyond the bound taken: %v", i, taken)
		}
	}
	if !b.Put([]byte("notification")) {
		t.Error("a notification ended a mailbox that is full of requests")
	}
	for i := range Most {
		if data, _, err := b.Next(nil); string(data) != "request" || err != nil {
			t.Fatalf("message %d is %q, %v, want a request", i, data, err)
		}
	}
	if b.HoldsAny() {
		t.Error("something is left")
	}
}

func TestABoxIsBoundedInBytes(t *testing.T) {
	const bound = 4 << 10
	b := newBox(bound)
	big := make([]byte, bound/4)
	for range 10 {
		b.Put(big)
	}
	if b.bytes > bound || len(b.queue) != 4 {
		t.Errorf("%d messages of %d bytes are held, want 4", len(b.queue), b.bytes)
	}
	if !b.PutRequest(make([]byte, 2*bound)) || len(b.queue) != 1 {
		t.Errorf("%d messages are held, want the one that is larger than the bound", len(b.queue))
	}
	if b.PutRequest(big) {
		t.Error("a request was taken by a box full of requests")
	}
}

func TestRequestsCanBeDropped(t *testing.T) {
	b := newBox(1 << 10)
	for i := range 6 {
		if i%2 == 0 {
			b.PutRequest([]byte("request"))
		} else {
			b.Put(fmt.Append(nil, i))
		}
	}
	b.DropRequests()
	b.Finish([]byte("response"))
	for _, want := range []string{"1", "3", "5", "response"} {
		if data, _, err := b.Next(nil); string(data) != want || err != nil {
			t.Errorf("got %q, %v; want %s", data, err, want)
		}
	}
}

// Readers that share a box: one that leaves takes no message with it, and every one hears of the end.
func TestReadersThatShareABoxLoseNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		b := newBox(1 << 10)
		got, gone := make(chan string, 100), make(chan error, 100)
		read := func(stop <-chan struct{}) {
			for {
				data, _, err := b.Next(stop)
				if err != nil {
					gone <- err
					return
				}
				got <- string(data)
			}
		}
		stop := make(chan struct{})
		for range 5 {
			go read(stop)
			go read(nil)
		}
		synctest.Wait()
		close(stop)
		for range 20 {
			b.Put([]byte("m"))
		}
		synctest.Wait()
		if len(got) != 20 || len(gone) != 5 {
			t.Errorf("%d messages were taken and %d readers have left, want 20 and 5", len(got), len(gone))
		}
		b.Fail(broken)
		synctest.Wait()
		if len(gone) != 10 {
			t.Fatalf("%d of 10 readers have left", len(gone))
		}
		for i := range 10 {
			if err, want := <-gone, map[bool]error{true: ErrGivenUp, false: broken}[i < 5]; err != want {
				t.Errorf("reader %d left with %v, want %v", i, err, want)
			}
		}
	})
}
