package scenario

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// benchToken opens the management API of a control plane that lives for one scenario, on loopback.
const benchToken = "a-token-of-the-bench-only"

// admit makes a control plane expose one server at /mcp of every sidecar, and returns a token for one to join with.
func admit(ctx context.Context, api, upstreamURL string) (joinToken string, err error) {
	type object map[string]any
	resources := []object{
		{"kind": "Upstream", "name": "server", "spec": object{"http": object{"url": upstreamURL}}},
		{"kind": "Binding", "name": "server", "spec": object{"selector": object{"matchLabels": object{}}, "path": "/mcp",
			"upstreams": []object{{"name": "server"}}}},
	}
	if err := manage(ctx, api, "Apply", object{"resources": resources}, &struct{}{}); err != nil {
		return "", err
	}
	var made struct{ Token string }
	err = manage(ctx, api, "CreateJoinToken", object{}, &made)
	return made.Token, err
}

// manage calls a method of the management API, in JSON.
func manage(ctx context.Context, api, method string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	url := "http://" + api + "/outrigger.v1.ResourceService/" + method
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(string(body)))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+benchToken)
	answer, err := ask(req)
	if err != nil {
		return fmt.Errorf("%s at the control plane: %w", method, err)
	}
	return json.Unmarshal(answer, out)
}
