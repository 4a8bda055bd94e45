package upstream

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// Timeouts bound every wait on a server; all are above zero.
type Timeouts struct {
	Connect   time.Duration // to reach the server
	Handshake time.Duration // for initialize, server/discover and readiness checks
	Call      time.Duration // from a call's first byte sent to its answer's last byte received
}

// TimeoutsOf fills in the defaults that upstream.proto promises. The message may be nil.
func TimeoutsOf(t *outriggerv1.Timeouts) Timeouts {
	return Timeouts{
		Connect:   orDefault(t.GetConnect(), 5*time.Second),
		Handshake: orDefault(t.GetHandshake(), 10*time.Second),
		Call:      orDefault(t.GetCall(), 15*time.Minute),
	}
}

func orDefault(d *durationpb.Duration, otherwise time.Duration) time.Duration {
	if v := d.AsDuration(); v > 0 {
		return v
	}
	return otherwise
}
