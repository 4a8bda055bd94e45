// Package explain decides calls that nobody makes, as the sidecars that run a binding would, and says why.
//
// What a sidecar of the binding is given comes from package compile, is decoded as the sidecar does, and is decided by the
// sidecar's own packages: who a credential shows by apikey, jwt and certificate, where he belongs by tenant, what he may do by
// policy. Only that the credential is good is believed.
//
// It is about desired state: a sidecar that is behind, or refused a resource, still goes by what it has. Pure, and safe for
// concurrent use.
package explain

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/controlplane/compile"
	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
	"github.com/outrigger-mesh/outrigger/sidecar/policy"
)

// ErrNoBinding is that the binding does not exist.
var ErrNoBinding = errors.New("no such Binding")

// fleet is what a sidecar of the binding has of desired state, as far as it decides who may call what.
type fleet struct {
	binding  *outriggerv1.Binding
	policies []*outriggerv1.Policy
	tenants  []*outriggerv1.Tenant
	keys     []*outriggerv1.Key
}

// Explain decides a call. The objects are all that there are; Secrets among them are not looked at. Errors: ErrNoBinding;
// resource.Errors with what is wrong with the request.
func Explain(objects []resource.Object, req *outriggerv1.ExplainRequest, now time.Time) (*outriggerv1.ExplainResponse, error) {
	f, err := fleetOf(objects, req.GetBinding())
	if err != nil {
		return nil, err
	}
	r, mistakes := f.request(req)
	who, more := f.caller(req.GetPrincipal(), now)
	if mistakes = append(mistakes, more...); len(mistakes) > 0 {
		return nil, mistakes
	}
	if who.refused != "" {
		return &outriggerv1.ExplainResponse{Policy: who.policy, Reason: who.refused, Tenant: who.tenant}, nil
	}
	o := policy.Options{Binding: f.binding.GetName(), Policies: f.policies}
	for _, u := range f.binding.GetUpstreams() {
		o.Upstreams = append(o.Upstreams, u.GetName())
	}
	set, err := policy.Compile(o)
	if err != nil {
		return nil, fmt.Errorf("no sidecar can run it: %w", err)
	}
	r.Principal, r.Time = who.principal, now
	d, rules := set.Explain(r)
	return &outriggerv1.ExplainResponse{
		Allowed:       d.Allowed,
		Listed:        r.Subject != policy.None && set.List(r),
		Policy:        orDefault(d.Policy),
		Rule:          d.Rule,
		Reason:        f.reason(set != nil, r, d) + who.note,
		Tenant:        who.tenant,
		MissingScopes: d.MissingScopes,
		Rules:         rules,
	}, nil
}

// fleetOf reads the resources that a sidecar with just the labels of the binding's selector is given.
func fleetOf(objects []resource.Object, binding string) (*fleet, error) {
	f := &fleet{}
	for _, o := range objects {
		if b, ok := o.(*outriggerv1.Binding); ok && b.GetName() == binding {
			f.binding = b
		}
	}
	if f.binding == nil {
		return nil, fmt.Errorf("%w: %q", ErrNoBinding, binding)
	}
	view := compile.Compile(objects, 0).View("", f.binding.GetSelector().GetMatchLabels())
	for _, e := range view.Resources {
		kind, _ := resource.KindOfTypeURL(e.TypeURL)
		o, ok := resource.New(kind)
		if !ok {
			return nil, fmt.Errorf("%s is of no kind", e.TypeURL)
		}
		if err := proto.Unmarshal(e.Any.GetValue(), o); err != nil {
			return nil, fmt.Errorf("%s/%s: %w", kind, e.Name, err)
		}
		switch o := o.(type) {
		case *outriggerv1.Policy:
			f.policies = append(f.policies, resource.WithDefaults(o))
		case *outriggerv1.Tenant:
			f.tenants = append(f.tenants, o)
		case *outriggerv1.Key:
			f.keys = append(f.keys, o)
		}
	}
	return f, nil
}

// orDefault is the name of what decided.
func orDefault(policy string) string {
	if policy == "" {
		return "default"
	}
	return policy
}
