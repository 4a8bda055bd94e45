package resource

import (
	"fmt"
	"slices"
	"strings"
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
// A transport or credential that is not there stays so, as do a token's audiences and the claims of its scopes.
func WithDefaults[O Object](o O) O {
	o = proto.CloneOf(o)
	switch o := any(o).(type) {
	case *outriggerv1.Upstream:
		fillUpstream(o)
	case *outriggerv1.Binding:
		fillBinding(o)
	case *outriggerv1.Policy:
		fillPolicy(o)
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
	fillCredential(u.Credential)
	fillBridge(u)
	fillCare(u)
}

func fillCredential(c *outriggerv1.Credential) {
	if c == nil {
		return
	}
	fill(&c.Header, "Authorization")
	for _, e := range []*outriggerv1.TokenEndpoint{c.GetClientCredentials().GetEndpoint(), c.GetTokenExchange().GetEndpoint()} {
		if e != nil {
			fill(&c.Prefix, "Bearer ")
			fillDuration(&e.Timeout, 10*time.Second)
		}
	}
}

func fillBridge(u *outriggerv1.Upstream) {
	if u.Bridge == nil {
		u.Bridge = &outriggerv1.Bridge{}
	}
	b := u.Bridge
	if b.Enabled == nil {
		b.Enabled = proto.Bool(true)
	}
	fill(&b.MaxSessions, 1000)
	fillDuration(&b.SessionIdle, 5*time.Minute)
	fill(&b.MaxHeldCalls, 1000)
	fillDuration(&b.HeldTimeout, 5*time.Minute)
	fill(&b.MaxRounds, 10)
}

// fillCare fills in what spares a server: concurrency, health and retries.
func fillCare(u *outriggerv1.Upstream) {
	if u.Concurrency == nil {
		u.Concurrency = &outriggerv1.Concurrency{}
	}
	fill(&u.Concurrency.MaxCalls, 1000)
	fill(&u.Concurrency.MaxWaiting, 1000)
	fillDuration(&u.Concurrency.MaxWait, 5*time.Second)
	if u.Health == nil {
		u.Health = &outriggerv1.Health{}
	}
	fill(&u.Health.Failures, 5)
	fillDuration(&u.Health.RetryAfter, time.Second)
	fillDuration(&u.Health.Interval, 10*time.Second)
	if u.Retry == nil {
		u.Retry = &outriggerv1.Retry{}
	}
	fill(&u.Retry.BudgetPercent, 20)
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
	fillFederation(b)
}

// fillFederation fills in how several upstreams are offered as one.
func fillFederation(b *outriggerv1.Binding) {
	for _, u := range b.Upstreams {
		u.Prefix = prefixOf(u)
	}
	if b.Names == nil {
		b.Names = &outriggerv1.Names{}
	}
	if len(b.Upstreams) > 1 {
		fill(&b.Names.Prefix, outriggerv1.Prefix_PREFIX_ALWAYS)
	}
	fill(&b.Names.Prefix, outriggerv1.Prefix_PREFIX_NEVER)
	fill(&b.Names.MaxLength, 64)
	if b.Lists == nil {
		b.Lists = &outriggerv1.Lists{}
	}
	fill(&b.Lists.PageSize, 1000)
	fill(&b.Lists.MaxPages, 100)
	fillDuration(&b.Lists.Timeout, 5*time.Second)
	fillDuration(&b.Lists.Ttl, time.Minute)
	fillDuration(&b.Lists.Stale, 10*time.Minute)
	fill(&b.PartialFailure, outriggerv1.PartialFailure_PARTIAL_FAILURE_SERVE)
}

func fillPolicy(p *outriggerv1.Policy) {
	for i, r := range p.Rules {
		fill(&r.Name, fmt.Sprintf("rules[%d]", i))
	}
	for _, provider := range p.GetIdentity().GetProviders() {
		if k := provider.GetKeys(); k != nil {
			fill(&k.Header, "X-Api-Key")
		}
		if j := provider.GetJwt(); j != nil {
			fillJWT(j)
		}
	}
}

func fillJWT(j *outriggerv1.JWTProvider) {
	if len(j.Algorithms) == 0 {
		j.Algorithms = slices.Clone(SignatureAlgorithms)
	}
	fillDuration(&j.ClockSkew, 30*time.Second)
	fillDuration(&j.Refresh, 10*time.Minute)
	fillDuration(&j.Stale, 24*time.Hour)
	if j.Claims == nil {
		j.Claims = &outriggerv1.ClaimPaths{}
	}
	fill(&j.Claims.Subject, "sub")
	fill(&j.Claims.Groups, "groups")
}

// prefixOf is the prefix of an upstream's names, given or by default.
func prefixOf(u *outriggerv1.UpstreamReference) string {
	if p := u.GetPrefix(); p != "" {
		return p
	}
	return strings.ReplaceAll(u.GetName(), ".", "-")
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
