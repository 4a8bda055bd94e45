package drive

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/outrigger-mesh/outrigger/bench/drive/wire"
)

// callStream opens a stream and closes it. With HTTP/1.1 the connection goes with it.
func (k *conn) callStream() error {
	err := k.openStream()
	k.close()
	return err
}

// openStream opens a stream of the connection's era: a subscription, up to its acknowledgement (MCP 2026-07-28,
// Subscriptions), or a GET stream, up to its head (MCP 2025-11-25, Listening for Messages from the Server).
func (k *conn) openStream() error {
	k.eventCount, k.firstEvent = 0, time.Time{}
	request := k.requests.bodyless("GET", k.session)
	if k.c.Era == wire.Stateless {
		k.json.set(k.number)
		request = k.json.bytes
	}
	if err := k.send(request); err != nil {
		return err
	}
	if err := k.readHead(); err != nil {
		return err
	}
	k.body.Reset(k.r, &k.head)
	if k.head.Status != 200 || !k.head.Events {
		k.buf, _ = k.body.Append(k.buf[:0])
		return k.refused()
	}
	k.events.Reset(&k.body)
	if k.c.Era == wire.Stateless {
		if err := k.acknowledged(); err != nil {
			return err
		}
	}
	k.answered = time.Now()
	return nil
}

// acknowledged reads a subscription's first event.
func (k *conn) acknowledged() error {
	data, err := k.events.Next()
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	if err != nil {
		return err
	}
	k.firstEvent = time.Now()
	if !bytes.Contains(data, []byte("notifications/subscriptions/acknowledged")) {
		return &wrongAnswer{k.number, fmt.Sprintf("%.200q", data), "an acknowledgement"}
	}
	return nil
}

// follow reads an open stream's events until it ends, and returns why. count is told of each event.
func (k *conn) follow(ctx context.Context, count func()) error {
	k.nc.SetDeadline(time.Time{}) //nolint:errcheck // the read tells
	for {
		_, err := k.events.Next()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("a held stream ended: %w", err)
		}
		count()
	}
}
