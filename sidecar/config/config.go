// Package config is the configuration a sidecar runs: from a file or from the control plane, validated, kept on disk.
//
// A source (File, or the xDS client) holds one Config at a time and hands each new one to a Target, which compiles
// it and swaps. What a source refuses, or the Target does, never replaces what ran before. Not here: what a resource
// may say (proto/resource), what runs from it (package proxy).
package config

import (
	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

// Config is everything one sidecar should run. It is not changed once made.
type Config struct {
	// Generation is the manifest's content hash, or a file's.
	Generation string
	Upstreams  []*outriggerv1.Upstream // ordered by name
	Bindings   []*outriggerv1.Binding  // ordered by name
	Policies   []*outriggerv1.Policy   // ordered by name
	Tenants    []*outriggerv1.Tenant   // ordered by name
	Keys       []*outriggerv1.Key      // ordered by name
	Secrets    []*outriggerv1.Secret   // ordered by name

	// Missing are the Policies and Tenants that should run and of which there is no form that can: where they would have a
	// say, nothing may be allowed for want of it.
	Missing []Missing
}

// add takes an object that comes after all others of its kind.
func (c *Config) add(o resource.Object) {
	switch o := o.(type) {
	case *outriggerv1.Upstream:
		c.Upstreams = append(c.Upstreams, o)
	case *outriggerv1.Binding:
		c.Bindings = append(c.Bindings, o)
	case *outriggerv1.Policy:
		c.Policies = append(c.Policies, o)
	case *outriggerv1.Tenant:
		c.Tenants = append(c.Tenants, o)
	case *outriggerv1.Key:
		c.Keys = append(c.Keys, o)
	case *outriggerv1.Secret:
		c.Secrets = append(c.Secrets, o)
	}
}

// Missing is a Policy or Tenant without a form that can run.
type Missing struct {
	Refusal
	// Target is what the Policy is for; nil where that could not be read, and for a Tenant: then it may be everything.
	Target *outriggerv1.PolicyTarget
}

// Refusal is one resource that a Target could not take, and why.
type Refusal struct {
	Kind   string `json:"kind"`
	Name   string `json:"name,omitempty"`
	Reason string `json:"reason"`
}

// Target runs configurations. Package proxy has the real one.
type Target interface {
	// Check reports why this sidecar could not run a resource, by what only it knows (a credential it lacks). It
	// changes nothing and does not look at other resources.
	Check(o resource.Object) error

	// Apply swaps to c and returns what it could not take. A refused resource's last good form goes on running if
	// there was one; every other resource of c runs when Apply returns.
	Apply(c *Config) []Refusal
}
