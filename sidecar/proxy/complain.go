package proxy

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// complainEvery is how often one server's failures are logged at most.
const complainEvery = 5 * time.Second

// complaints are what the log hears of a server's failures: the cause, which clients are not told, and not each of them.
type complaints struct {
	next  atomic.Int64 // no complaint before, Unix nanoseconds
	since atomic.Int64 // failures not logged
}

// complain logs a failure with its cause, unless one was logged a moment ago.
func (c *complaints) complain(log *slog.Logger, err *upstream.Error) {
	now := time.Now().UnixNano()
	next := c.next.Load()
	if now < next || !c.next.CompareAndSwap(next, now+int64(complainEvery)) {
		c.since.Add(1)
		return
	}
	log = log.With("upstream", err.Upstream, "reason", err.Kind.Reason(), "error", err.Detail)
	if err.Cause != nil {
		log = log.With("cause", err.Cause.Error())
	}
	log.Warn("a call failed at its server", "others_since_the_last_line", c.since.Swap(0))
}
