package resource

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// defaultPath is where a binding is that does not say.
const defaultPath = "/mcp"

// BindingPath is the path of a binding, given or by default.
func BindingPath(b *outriggerv1.Binding) string {
	if p := b.GetPath(); p != "" {
		return p
	}
	return defaultPath
}

// WithDefaults is a copy of o in which every field that was left out, or is zero where zero takes the default, has the
// value that its comment in the proto promises. Hosts and origins stay empty: their defaults depend on the connection.
// A transport or credential that is not there stays so.
func WithDefaults[O Object](o O) O {
	o = proto.CloneOf(o)
	switch o := any(o).(type) {
	case *outriggerv1.Upstream:
		fillUpstream(o)
	case *outriggerv1.Binding:
		fillBinding(o)
	}
	return o
}

func fillUpstream(u *outriggerv1.Upstream) {
	fill(&u.Era, outriggerv1.Era_ERA_AUTO)
	if u.Timeouts == nil {
		u.Timeouts = &outriggerv1.Timeouts{}
	}
	fillDuration(&u.Timeouts.Connect, 5*time.Second)
	fillDuration(&u.Timeouts.Handshake, 10*time.Second)
	fillDuration(&u.Timeouts.Call, 15*time.Minute)
	if t := u.GetHttp(); t != nil {
		fill(&t.MaxIdleConnections, 128)
	}
	if t := u.GetStdio(); t != nil {
		fill(&t.Isolation, outriggerv1.Isolation_ISOLATION_SHARED)
		fillDuration(&t.StopGrace, 5*time.Second)
		fill(&t.MaxMessageBytes, 64<<20)
	}
	if c := u.Credential; c != nil {
		fill(&c.Header, "Authorization")
	}
}

func fillBinding(b *outriggerv1.Binding) {
	fill(&b.Path, defaultPath)
	if b.Limits == nil {
		b.Limits = &outriggerv1.Limits{}
	}
	fill(&b.Limits.MaxBodyBytes, 4<<20)
	fill(&b.Limits.MaxDepth, 128)
	fillDuration(&b.Limits.ReadTimeout, 30*time.Second)
	if b.Session == nil {
		b.Session = &outriggerv1.SessionSettings{}
	}
	fillDuration(&b.Session.IdleTimeout, 30*time.Minute)
	fill(&b.Session.MaxSessions, 10_000)
	fill(&b.Session.ReplayBytes, 1<<20)
	if b.AccessLog == nil {
		b.AccessLog = proto.Bool(true)
	}
	fillDuration(&b.KeepAlive, 15*time.Second)
}

func fill[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func fillDuration(field **durationpb.Duration, value time.Duration) {
	if (*field).AsDuration() == 0 {
		*field = durationpb.New(value)
	}
}
