package proxy

import (
	"context"
	"fmt"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// resumer is a server that holds calls.
type resumer interface {
	Resume(ctx context.Context, r *outriggerv1.ResumeRequest) (*upstream.Answer, error)
}

// Resume goes on with a call that an upstream of this sidecar holds, for the sidecar that its client's retry came to. It
// is a peer.Resumer.
func (p *Proxy) Resume(ctx context.Context, r *outriggerv1.ResumeRequest) (*upstream.Answer, error) {
	s := p.table.Load().servers[r.GetUpstream()]
	if s == nil {
		return nil, fmt.Errorf("%w %q", upstream.ErrNotHere, r.GetUpstream())
	}
	h, ok := s.Server.(resumer)
	if !ok {
		return nil, fmt.Errorf("%w %q with calls that it holds", upstream.ErrNotHere, r.GetUpstream())
	}
	return h.Resume(ctx, r)
}
