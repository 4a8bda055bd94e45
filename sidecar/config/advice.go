package config

import (
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// advice is what to look at for an error of a connection to a control plane, by a part of its text: crypto/tls and gRPC
// have no values for these.
var advice = []struct{ says, look string }{
	{"first record does not look like a TLS handshake", "nothing speaks TLS there: is this the control plane's --xds address? " +
		"One that runs with --xds-plaintext needs --control-plane-plaintext here"},
	{"error reading server preface", "is this the control plane's --xds address? " +
		"One that runs without --xds-plaintext must be dialled without --control-plane-plaintext"},
	{"unexpected HTTP status code", "is this the control plane's --xds address?"},
}

// advised adds to an error of a connection to a control plane what its operator could look at.
func advised(err error) error {
	if err == nil {
		return nil
	}
	for _, a := range advice {
		if strings.Contains(err.Error(), a.says) {
			return fmt.Errorf("%w (%s)", err, a.look)
		}
	}
	if status.Code(err) == codes.Unimplemented {
		return fmt.Errorf("%w (is this the control plane's --xds address?)", err)
	}
	return err
}
