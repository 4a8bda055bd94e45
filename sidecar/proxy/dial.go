package proxy

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"os"

	"google.golang.org/protobuf/proto"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
	"github.com/outrigger-mesh/outrigger/sidecar/bridge/tolegacy"
	"github.com/outrigger-mesh/outrigger/sidecar/bridge/tostateless"
	"github.com/outrigger-mesh/outrigger/sidecar/budget"
	"github.com/outrigger-mesh/outrigger/sidecar/credential"
	"github.com/outrigger-mesh/outrigger/sidecar/federate"
	"github.com/outrigger-mesh/outrigger/sidecar/seal"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream/care"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream/sse"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream/stdio"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream/streamable"
)

// Dialer makes servers of every transport. It is Options.Dial's usual value.
type Dialer struct {
	Log         *slog.Logger
	Credentials *credential.Sources // what servers are presented; nil: Upstreams that name any are refused
	Version     string              // the build's, for handshakes of the sidecar's own

	Sealer *seal.Sealer    // of what clients are given to bring back; nil: each server has its own
	Holder tolegacy.Holder // this sidecar, where it holds calls for others; zero: it is not found
	Peers  tolegacy.Peers  // the others; nil: they are not asked
	Via    string          // Options.Via

	Answers *budget.Budget // of answers that are translated, of all servers; nil: no bound over all
	Lists   *budget.Budget // likewise of lists that federations keep
}

// bridged is a server that clients of both wires can use.
type bridged struct {
	*tostateless.Server
	calls *tolegacy.Server // those it holds
	care  *care.Server
}

// Snapshot implements cared.
func (b bridged) Snapshot() care.Snapshot { return b.care.Snapshot() }

// Resume implements resumer.
func (b bridged) Resume(ctx context.Context, r *outriggerv1.ResumeRequest) (*upstream.Answer, error) {
	return b.calls.Resume(ctx, r)
}

// Dial makes the server that u names, for clients of both wires unless the resource says otherwise, and reaches for
// nothing but the value of its credential, which may be one of secrets.
func (d Dialer) Dial(u *outriggerv1.Upstream, secrets credential.Secrets) (upstream.Server, error) {
	presented, err := d.Credentials.For(u, secrets)
	if err != nil {
		return nil, err
	}
	endpoints, err := d.endpoints(u, presented)
	if err != nil {
		return nil, err
	}
	log, full := d.Log.With("upstream", u.GetName()), resource.WithDefaults(u)
	s := care.New(endpoints, full, care.Options{Log: log})
	if !full.GetBridge().GetEnabled() {
		return s, nil
	}
	calls := tolegacy.New(s, tolegacy.Options{Log: log, Upstream: full, Sealer: d.Sealer, Holder: d.Holder, Peers: d.Peers, Budget: d.Answers})
	return bridged{d.forLegacy(calls, full), calls, s}, nil
}

// endpoints makes a server for each URL of a resource, or the only one.
func (d Dialer) endpoints(u *outriggerv1.Upstream, presented *credential.Source) (endpoints []upstream.Server, err error) {
	for _, more := range append([]string{""}, u.GetHttp().GetMoreUrls()...) {
		one := u
		if more != "" {
			one = proto.CloneOf(u)
			one.GetHttp().Url = more
		}
		s, err := d.transport(one, presented)
		if err != nil {
			return nil, err // the others have not been used: there is nothing to close
		}
		endpoints = append(endpoints, s)
	}
	return endpoints, nil
}

// forLegacy lets clients of the wire with sessions use a server of the other.
func (d Dialer) forLegacy(s upstream.Server, full *outriggerv1.Upstream) *tostateless.Server {
	return tostateless.New(s, tostateless.Options{
		Log: d.Log.With("upstream", full.GetName()), Upstream: full.GetName(), Name: "outrigger", Version: d.Version,
		MaxRounds:     int(full.GetBridge().GetMaxRounds()),
		AnswerTimeout: full.GetBridge().GetHeldTimeout().AsDuration(),
		Handshake:     full.GetTimeouts().GetHandshake().AsDuration(),
		Budget:        d.Answers,
	})
}

// Federate makes one server of several. It is Options.Federate's usual value.
func (d Dialer) Federate(full *outriggerv1.Binding, members []federate.Member) upstream.Server {
	s := federate.New(members, d.federation(full))
	return d.forLegacy(s, resource.WithDefaults(&outriggerv1.Upstream{Name: full.GetName()}))
}

// Lone is Options.Lone's usual value.
func (d Dialer) Lone(full *outriggerv1.Binding, m federate.Member) upstream.Server {
	return federate.NewLone(m, d.federation(full))
}

func (d Dialer) federation(full *outriggerv1.Binding) federate.Options {
	sealer := d.Sealer
	if sealer == nil {
		sealer = seal.New()
	}
	return federate.Options{
		Binding: full, Log: d.Log.With("binding", full.GetName()), Sealer: sealer, Name: "outrigger", Version: d.Version,
		Answers: d.Answers, Lists: d.Lists,
	}
}

// transport makes the server as it is.
func (d Dialer) transport(u *outriggerv1.Upstream, presented *credential.Source) (upstream.Server, error) {
	log := d.Log.With("upstream", u.GetName())
	switch u.GetTransport().(type) {
	case *outriggerv1.Upstream_Http:
		return streamable.New(u.GetName(), u, streamable.Options{
			Log: log, Credential: presented, UserAgent: "outrigger/" + d.Version,
			ClientInfo: streamable.ClientInfo{Name: "outrigger", Version: d.Version}, Via: d.Via,
		})
	case *outriggerv1.Upstream_Sse:
		return sse.New(u.GetName(), u, sse.Options{
			Log: log, Credential: presented, UserAgent: "outrigger/" + d.Version,
			ClientInfo: streamable.ClientInfo{Name: "outrigger", Version: d.Version}, Via: d.Via,
		})
	case *outriggerv1.Upstream_Stdio:
		return stdio.New(u.GetName(), u, stdio.Options{Log: log, ClientName: "outrigger", ClientVersion: d.Version})
	}
	return nil, fmt.Errorf("spec: this sidecar knows no transport that it names")
}

// Outside is a digest of what Dial would read beside the resource now: the credential, and the authorities to trust.
func (d Dialer) Outside(u *outriggerv1.Upstream, secrets credential.Secrets) ([]byte, error) {
	transport, caFile := "http", u.GetHttp().GetCaFile()
	if s := u.GetSse(); s != nil {
		transport, caFile = "sse", s.GetCaFile()
	}
	if u.GetCredential() == nil && caFile == "" {
		return nil, nil
	}
	presented, err := d.Credentials.For(u, secrets)
	if err != nil {
		return nil, err
	}
	digest := sha256.New()
	digest.Write(presented.Digest())
	if caFile != "" {
		pem, err := os.ReadFile(caFile)
		if err != nil {
			return nil, fmt.Errorf("spec.%s.caFile: %w", transport, err)
		}
		digest.Write(pem)
	}
	return digest.Sum(nil), nil
}
