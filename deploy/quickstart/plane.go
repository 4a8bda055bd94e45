package main

import (
	"context"
	_ "embed"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/outrigger/v1/outriggerv1connect"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

//go:embed outrigger.yaml
var configuration string

// newAPI is a client of the management API.
func newAPI(url, token string) outriggerv1connect.ResourceServiceClient {
	return outriggerv1connect.NewResourceServiceClient(&http.Client{Transport: bearer(token)}, url)
}

// bearer is the token that goes with every request.
type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return direct.Transport.RoundTrip(r)
}

// configurationFile is outrigger.yaml as it is applied: with the address at which the server is.
func (m *mesh) configurationFile() string { return filepath.Join(m.dir, "outrigger.yaml") }

// apply puts outrigger.yaml into the control plane, all of it or nothing.
func (m *mesh) apply(ctx context.Context) (string, error) {
	text := strings.ReplaceAll(configuration, usualServer, m.at.server)
	if err := os.WriteFile(m.configurationFile(), []byte(text), 0o644); err != nil {
		return "", err
	}
	resources, mistakes := resource.Parse("outrigger.yaml", []byte(text))
	if len(mistakes) > 0 {
		return "", mistakes
	}
	res, err := m.api.Apply(ctx, &outriggerv1.ApplyRequest{Resources: resources})
	if err != nil {
		return "", err
	}
	var applied []string
	for _, r := range res.Resources {
		applied = append(applied, r.Kind+"/"+r.Name)
	}
	return "applied " + strings.Join(applied, " and "), nil
}

// writeJoinToken makes the secret against which the sidecar gets its identity, and with it the label that the Binding
// selects.
func (m *mesh) writeJoinToken(ctx context.Context, file string) error {
	res, err := m.api.CreateJoinToken(ctx, &outriggerv1.CreateJoinTokenRequest{Labels: map[string]string{"app": "example"}})
	if err != nil {
		return fmt.Errorf("join token: %w", err)
	}
	return os.WriteFile(file, []byte(res.Token+"\n"), 0o600)
}

// awaitRunning waits until the control plane reports the sidecar as running what was applied.
func (m *mesh) awaitRunning(ctx context.Context) (string, error) {
	for {
		res, err := m.api.ListSidecars(ctx, &outriggerv1.ListSidecarsRequest{})
		if err != nil {
			return "", err
		}
		runs, why := running(res.Sidecars)
		if why == "" {
			return "the control plane reports " + node + " as running " + strings.Join(runs, " and "), nil
		}
		select {
		case <-time.After(10 * pollEvery):
		case <-ctx.Done():
			return "", fmt.Errorf("the control plane says: %s", why)
		}
	}
}

// running are the resources that the sidecar runs, or why it does not run all that it should yet.
func running(sidecars []*outriggerv1.Sidecar) (runs []string, why string) {
	for _, s := range sidecars {
		if s.Id != node {
			continue
		}
		for _, r := range s.Resources {
			name := r.Kind + "/" + r.Name
			if r.State != outriggerv1.State_STATE_RUNNING {
				return nil, fmt.Sprintf("%s is %v on %s %s", name, r.State, node, r.Reason)
			}
			runs = append(runs, name)
		}
		switch {
		case !s.Connected:
			return nil, node + " is not connected"
		case len(runs) == 0:
			return nil, node + " has nothing to run"
		case s.RunningGeneration != s.DesiredGeneration:
			return nil, node + " runs another generation"
		}
		return runs, ""
	}
	return nil, "there is no sidecar " + node
}
