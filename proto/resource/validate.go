package resource

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// CredentialEnvPrefix begins the name of every environment variable that a Credential may read.
const CredentialEnvPrefix = "OUTRIGGER_CREDENTIAL_"

// ReservedPaths are those that the sidecar answers itself; no binding may be at or under one.
var ReservedPaths = []string{"/.well-known", "/.outrigger"}

// Bounds.
const (
	maxName        = 63
	maxPath        = 256
	maxSocketPath  = 107 // what a sockaddr_un holds
	maxBytes       = 1 << 30
	maxDepth       = 10_000
	maxIdle        = 65_535
	maxSessions    = 10_000_000
	maxTimeout     = 24 * time.Hour
	maxIdleTimeout = 30 * 24 * time.Hour
	minKeepAlive   = 10 * time.Millisecond
	maxEndpoints   = 63
	maxUpstreams   = 64 // of a binding
	maxListed      = 10_000
	maxRules       = 1000
	maxProviders   = 16
	maxText        = 1024 // of a name, claim or pattern in a policy, in bytes
	maxSecret      = 64 << 10
)

var (
	namePattern      = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)
	labelPattern     = regexp.MustCompile(`^[A-Za-z0-9._/-]{1,63}$`)
	pathPattern      = regexp.MustCompile(`^/[A-Za-z0-9._~/-]*$`)
	hostPattern      = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*$`)
	schemePattern    = regexp.MustCompile(`^[a-z][a-z0-9+.-]*$`)
	prefixPattern    = regexp.MustCompile(`^[A-Za-z0-9_-]{0,23}[A-Za-z0-9-]$`)
	envPattern       = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	rulePattern      = regexp.MustCompile(`^[][A-Za-z0-9._/-]{1,63}$`)
	secretKeyPattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)
)

// Validate checks an Object by itself and reports every mistake, under the path of the field in its document.
func Validate(o Object) Errors {
	var v validator
	v.name("name", o.GetName())
	switch o := o.(type) {
	case *outriggerv1.Upstream:
		v.upstream(o)
	case *outriggerv1.Binding:
		v.binding(o)
	case *outriggerv1.Tenant:
		v.tenant(o)
	case *outriggerv1.Key:
		v.key(o)
	case *outriggerv1.Policy:
		v.policy(o)
	case *outriggerv1.Secret:
		v.secret(o)
	}
	return v.errs
}

// ValidName reports whether s may name a resource.
func ValidName(s string) bool { return len(s) <= maxName && namePattern.MatchString(s) }

type validator struct{ errs Errors }

// check records a mistake unless ok.
func (v *validator) check(ok bool, path, format string, args ...any) {
	if !ok {
		v.errs.addf(path, format, args...)
	}
}

func (v *validator) name(path, s string) {
	if s == "" {
		v.errs.addf(path, "required")
		return
	}
	v.check(ValidName(s), path, "%s is not a name: expected at most %d lower-case letters, digits, '-' and '.', each part beginning and ending with a letter or digit",
		quote(s), maxName)
}

func (v *validator) upstream(u *outriggerv1.Upstream) {
	switch t := u.Transport.(type) {
	case *outriggerv1.Upstream_Http:
		v.http(t.Http)
	case *outriggerv1.Upstream_Stdio:
		v.stdio(t.Stdio)
	case *outriggerv1.Upstream_Sse:
		scheme := v.url("spec.sse.url", t.Sse.GetUrl())
		v.caFile("spec.sse.caFile", t.Sse.GetCaFile(), scheme)
		v.check(u.Era != outriggerv1.Era_ERA_STATELESS, "spec.era", "stateless is not spoken over sse, expected legacy or auto")
	default:
		v.errs.addf("spec", "no transport, expected exactly one of http, stdio and sse")
	}
	v.check(outriggerv1.Era_name[int32(u.Era)] != "", "spec.era", "%d is not an era that this version knows", u.Era)
	v.duration("spec.timeouts.connect", u.Timeouts.GetConnect(), 0, maxTimeout)
	v.duration("spec.timeouts.handshake", u.Timeouts.GetHandshake(), 0, maxTimeout)
	v.duration("spec.timeouts.call", u.Timeouts.GetCall(), 0, maxTimeout)
	if u.Credential != nil {
		v.credential(u.Credential)
		v.check(u.GetStdio() == nil, "spec.credential", "a stdio server takes no header; give it what it needs in stdio.env")
	}
	v.care(u)
}

// care checks what spares a server, and what is kept for translation.
func (v *validator) care(u *outriggerv1.Upstream) {
	b, c, h := u.GetBridge(), u.GetConcurrency(), u.GetHealth()
	v.number("spec.bridge.maxSessions", b.GetMaxSessions(), 0, maxSessions)
	v.duration("spec.bridge.sessionIdle", b.GetSessionIdle(), 0, maxIdleTimeout)
	v.number("spec.bridge.maxHeldCalls", b.GetMaxHeldCalls(), 0, maxSessions)
	v.duration("spec.bridge.heldTimeout", b.GetHeldTimeout(), 0, maxTimeout)
	v.number("spec.bridge.maxRounds", b.GetMaxRounds(), 0, 1000)
	v.number("spec.concurrency.maxCalls", c.GetMaxCalls(), 0, maxSessions)
	v.number("spec.concurrency.maxWaiting", c.GetMaxWaiting(), 0, maxSessions)
	v.duration("spec.concurrency.maxWait", c.GetMaxWait(), 0, maxTimeout)
	v.number("spec.health.failures", h.GetFailures(), 0, 10_000)
	v.duration("spec.health.retryAfter", h.GetRetryAfter(), 0, time.Minute)
	if h.GetInterval().AsDuration() >= 0 { // negative: never
		v.duration("spec.health.interval", h.GetInterval(), time.Second, maxTimeout)
	}
	v.number("spec.retry.attempts", u.GetRetry().GetAttempts(), 0, 5)
	v.number("spec.retry.budgetPercent", u.GetRetry().GetBudgetPercent(), 0, 100)
}

// number checks one that is set: 0 takes the default, anything else is within its bounds.
func (v *validator) number(path string, n, least, most uint32) {
	v.check(n == 0 || n >= least && n <= most, path, "%d, expected %d to %d", n, max(1, least), most)
}

func (v *validator) http(t *outriggerv1.HTTPTransport) {
	scheme := v.url("spec.http.url", t.GetUrl())
	if s := t.GetUnixSocket(); s != "" {
		v.check(path.IsAbs(s) && noNUL(s), "spec.http.unixSocket", "%s is not an absolute path", quote(s))
		v.check(len(s) <= maxSocketPath, "spec.http.unixSocket", "%d bytes, expected at most %d", len(s), maxSocketPath)
	}
	v.caFile("spec.http.caFile", t.GetCaFile(), scheme)
	v.check(len(t.GetMoreUrls()) <= maxEndpoints, "spec.http.moreUrls", "%d given, expected at most %d", len(t.GetMoreUrls()), maxEndpoints)
	v.check(len(t.GetMoreUrls()) == 0 || t.GetUnixSocket() == "", "spec.http.moreUrls", "of no use with unixSocket, which is dialed for every URL")
	for i, s := range t.GetMoreUrls() {
		v.url(fmt.Sprintf("spec.http.moreUrls[%d]", i), s)
	}
	v.check(t.GetMaxIdleConnections() <= maxIdle, "spec.http.maxIdleConnections", "%d, expected at most %d", t.GetMaxIdleConnections(), maxIdle)
}

// caFile checks a file of authorities for a server with this scheme.
func (v *validator) caFile(at, s, scheme string) {
	if s == "" {
		return
	}
	v.check(noNUL(s), at, "%s is not a file's path", quote(s))
	v.check(scheme != "http", at, "of no use with an http URL, expected https")
}

// url checks an endpoint's URL and returns its scheme.
func (v *validator) url(at, s string) (scheme string) {
	if s == "" {
		v.errs.addf(at, `required, such as "http://127.0.0.1:3000/mcp"`)
		return ""
	}
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		v.errs.addf(at, "%s is not an absolute http(s) URL", quote(s))
		return ""
	}
	v.check(u.User == nil, at, "must not carry a user or password, expected a credential")
	v.check(u.Fragment == "", at, "must not have a fragment (#%s)", u.Fragment)
	_, port, err := net.SplitHostPort(u.Host)
	v.check(err != nil || validPort(port), at, "%s is not a port", quote(port))
	return u.Scheme
}

func (v *validator) stdio(t *outriggerv1.StdioTransport) {
	if len(t.GetCommand()) == 0 || t.Command[0] == "" {
		v.errs.addf("spec.stdio.command", `required: the program and its arguments, such as ["server", "--verbose"]`)
	}
	for i, arg := range t.GetCommand() {
		v.check(noNUL(arg), fmt.Sprintf("spec.stdio.command[%d]", i), "must not contain a NUL byte")
	}
	for _, key := range sortedKeys(t.GetEnv()) {
		v.check(envPattern.MatchString(key), "spec.stdio.env."+key, "%s is not the name of an environment variable", quote(key))
		v.check(noNUL(t.Env[key]), "spec.stdio.env."+key, "must not contain a NUL byte")
	}
	v.check(noNUL(t.GetWorkingDirectory()), "spec.stdio.workingDirectory", "must not contain a NUL byte")
	v.check(outriggerv1.Isolation_name[int32(t.GetIsolation())] != "", "spec.stdio.isolation", "%d is not an isolation that this version knows", t.GetIsolation())
	v.duration("spec.stdio.stopGrace", t.GetStopGrace(), 0, maxTimeout)
	v.bytes("spec.stdio.maxMessageBytes", t.GetMaxMessageBytes())
}

// ownHeader reports whether a header belongs to the connection, the message or the protocol, and so to the sidecar.
func ownHeader(name string) bool {
	name = strings.ToLower(name)
	switch name {
	case "connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization", "te", "trailer",
		"transfer-encoding", "upgrade", "host", "accept", "accept-encoding", "expect", "last-event-id", "origin":
		return true
	}
	return strings.HasPrefix(name, "content-") || strings.HasPrefix(name, "mcp-")
}

// travels reports whether a client's header goes on to servers.
func travels(name string) bool {
	switch strings.ToLower(name) {
	case "traceparent", "tracestate", "baggage", "via":
		return true
	}
	return false
}

func (v *validator) binding(b *outriggerv1.Binding) {
	if b.Selector == nil {
		v.errs.addf("spec.selector", "required: which sidecars, {} for all of them")
	}
	checkLabels("spec.selector.matchLabels", b.Selector.GetMatchLabels(), &v.errs)
	v.path("spec.path", b.Path)
	v.check(len(b.Upstreams) > 0 && len(b.Upstreams) <= maxUpstreams, "spec.upstreams", "%d given, expected 1 to %d", len(b.Upstreams), maxUpstreams)
	for i, u := range b.Upstreams {
		v.name(fmt.Sprintf("spec.upstreams[%d].name", i), u.GetName())
	}
	for i, h := range b.Hosts {
		v.check(validHost(h), fmt.Sprintf("spec.hosts[%d]", i), "%s is not a host without port, such as app.example, 10.0.0.1 or [::1]", quote(h))
	}
	for i, o := range b.Origins {
		v.check(validOrigin(o), fmt.Sprintf("spec.origins[%d]", i), "%s is not an origin, such as https://app.example or http://localhost:6274", quote(o))
	}
	v.bytes("spec.limits.maxBodyBytes", b.Limits.GetMaxBodyBytes())
	v.check(b.Limits.GetMaxDepth() <= maxDepth, "spec.limits.maxDepth", "%d, expected at most %d", b.Limits.GetMaxDepth(), maxDepth)
	v.duration("spec.limits.readTimeout", b.Limits.GetReadTimeout(), 0, maxTimeout)
	v.duration("spec.session.idleTimeout", b.Session.GetIdleTimeout(), 0, maxIdleTimeout)
	v.check(b.Session.GetMaxSessions() <= maxSessions, "spec.session.maxSessions", "%d, expected at most %d", b.Session.GetMaxSessions(), maxSessions)
	v.bytes("spec.session.replayBytes", b.Session.GetReplayBytes())
	v.duration("spec.keepAlive", b.KeepAlive, minKeepAlive, maxTimeout)
	v.externalURL("spec.externalUrl", b.ExternalUrl)
	v.federation(b)
}

// federation checks how several upstreams are offered as one.
func (v *validator) federation(b *outriggerv1.Binding) {
	for i, u := range b.Upstreams {
		at := fmt.Sprintf("spec.upstreams[%d]", i)
		p := u.GetPrefix()
		v.check(p == "" || prefixPattern.MatchString(p), at+".prefix", "%s, expected 1 to 24 letters, digits, '_' and '-', the last one not '_'", quote(p))
		for j, other := range b.Upstreams[:i] {
			v.check(u.GetName() != other.GetName() || u.GetName() == "", at+".name", "%s is already spec.upstreams[%d]", quote(u.GetName()), j)
			v.check(!ambiguous(prefixOf(u), prefixOf(other)), at+".prefix", "%s and %s of spec.upstreams[%d] can give two tools the same name", quote(prefixOf(u)), quote(prefixOf(other)), j)
		}
	}
	v.check(outriggerv1.Prefix_name[int32(b.GetNames().GetPrefix())] != "", "spec.names.prefix", "%d is not a way of naming that this version knows", b.GetNames().GetPrefix())
	v.number("spec.names.maxLength", b.GetNames().GetMaxLength(), 32, 128)
	v.number("spec.lists.pageSize", b.GetLists().GetPageSize(), 0, 100_000)
	v.number("spec.lists.maxPages", b.GetLists().GetMaxPages(), 0, 10_000)
	v.duration("spec.lists.timeout", b.GetLists().GetTimeout(), 0, maxTimeout)
	v.duration("spec.lists.ttl", b.GetLists().GetTtl(), 0, maxTimeout)
	v.duration("spec.lists.stale", b.GetLists().GetStale(), 0, maxIdleTimeout)
	v.check(outriggerv1.PartialFailure_name[int32(b.GetPartialFailure())] != "", "spec.partialFailure", "%d is not a choice that this version knows", b.GetPartialFailure())
}

// ambiguous reports whether a name with one prefix may be a name with the other.
func ambiguous(a, b string) bool {
	return a != "" && b != "" && (strings.HasPrefix(a+"_", b+"_") || strings.HasPrefix(b+"_", a+"_"))
}

// path checks a binding's path. It is also a pattern's and a label's text, so its letters are few.
func (v *validator) path(at, s string) {
	switch {
	case s == "": // the default
	case !strings.HasPrefix(s, "/"):
		v.errs.addf(at, "%s, expected a path that begins with '/'", quote(s))
	case len(s) > maxPath:
		v.errs.addf(at, "%d bytes, expected at most %d", len(s), maxPath)
	case !pathPattern.MatchString(s):
		v.errs.addf(at, "%s, expected only letters, digits and . _ ~ - / (no query, no escapes)", quote(s))
	case path.Clean(s) != s:
		v.errs.addf(at, "%s is not in its shortest form, expected %s", quote(s), quote(path.Clean(s)))
	default:
		for _, reserved := range ReservedPaths {
			v.check(s != reserved && !strings.HasPrefix(s, reserved+"/"), at, "%s is reserved, expected a path that is not under %s", quote(s), oneOf(ReservedPaths))
		}
	}
}

func (v *validator) bytes(path string, n uint64) {
	v.check(n <= maxBytes, path, "%d bytes, expected at most %d (1 GiB)", n, maxBytes)
}

// duration checks one that is set: 0 takes the default, anything else is within its bounds.
func (v *validator) duration(path string, d *durationpb.Duration, least, most time.Duration) {
	if d == nil {
		return
	}
	t := d.AsDuration()
	switch {
	case d.CheckValid() != nil:
		v.errs.addf(path, "%v seconds and %v nanoseconds is not a duration", d.Seconds, d.Nanos)
	case t < 0:
		v.errs.addf(path, "%v is negative, expected at least 0", t)
	case t > most:
		v.errs.addf(path, "%v, expected at most %s", t, formatDuration(most))
	case t != 0 && t < least:
		v.errs.addf(path, "%v, expected at least %v", t, least)
	}
}

// checkLabels checks labels' keys and values.
func checkLabels(path string, labels map[string]string, errs *Errors) {
	for _, key := range sortedKeys(labels) {
		if !labelPattern.MatchString(key) {
			errs.addf(path+"."+key, "%s is not a label's key: expected 1 to 63 of letters, digits and . _ / -", quote(key))
		}
		if value := labels[key]; value != "" && !labelPattern.MatchString(value) {
			errs.addf(path+"."+key, "%s is not a label's value: expected at most 63 of letters, digits and . _ / -", quote(value))
		}
	}
}

// ValidLabels reports every label whose key or value is not one; paths begin with path.
func ValidLabels(path string, labels map[string]string) (errs Errors) {
	checkLabels(path, labels, &errs)
	return errs
}

// validHost reports whether s is a host as it stands in a Host header, without port.
func validHost(s string) bool {
	if inner, ok := strings.CutPrefix(s, "["); ok {
		inner, ok = strings.CutSuffix(inner, "]")
		ip, err := netip.ParseAddr(inner)
		return ok && err == nil && ip.Is6() && ip.Zone() == ""
	}
	return len(s) <= 253 && hostPattern.MatchString(s)
}

// validOrigin reports whether s is an origin as browsers send it: scheme, host, and a port that is not the scheme's own.
func validOrigin(s string) bool {
	scheme, host, ok := strings.Cut(s, "://")
	if !ok || !schemePattern.MatchString(scheme) || s != strings.ToLower(s) {
		return false
	}
	if i := strings.LastIndexByte(host, ':'); i > strings.LastIndexByte(host, ']') {
		port := host[i+1:]
		own := scheme == "http" && port == "80" || scheme == "https" && port == "443"
		if own || !validPort(port) {
			return false
		}
		host = host[:i]
	}
	return validHost(host)
}

func noNUL(s string) bool { return !strings.Contains(s, "\x00") }

func validPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0
}
