package credential

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// maxValue is the longest file of a value, in bytes.
const maxValue = 64 << 10

// Secrets are the values of a configuration's Secrets, by name and key. Nil means that they are not known, as when a
// resource is looked at alone: every value is then taken to be there.
type Secrets map[string]map[string]string

// SecretsOf makes Secrets of resources.
func SecretsOf(all []*outriggerv1.Secret) Secrets {
	s := make(Secrets, len(all))
	for _, one := range all {
		s[one.GetName()] = one.GetValues()
	}
	return s
}

func (s Secrets) value(r *outriggerv1.SecretReference) (string, error) {
	if s == nil {
		return "not known here", nil
	}
	values, ok := s[r.GetName()]
	if !ok {
		return "", fmt.Errorf("secret: this sidecar has no Secret %q", r.GetName())
	}
	value := trimmed(values[r.GetKey()])
	if value == "" {
		return "", fmt.Errorf("secret: the Secret %q has no value %q, or an empty one", r.GetName(), r.GetKey())
	}
	return value, nil
}

func envValue(name string) (string, error) {
	value := os.Getenv(name)
	if value == "" {
		return "", fmt.Errorf("env: %s is not set where this sidecar runs", name)
	}
	return value, nil
}

func (s *Sources) fileValue(name string) (string, error) {
	if s.dir == "" {
		return "", errors.New("file: this sidecar runs without --credentials-dir")
	}
	if name != filepath.Base(name) || name == "." || name == ".." {
		return "", errors.New("file: must be the bare name of a file in --credentials-dir")
	}
	path := filepath.Join(s.dir, name)
	info, err := os.Stat(path)
	if err != nil || info.Size() > maxValue {
		return "", fmt.Errorf("file: %q cannot be read in --credentials-dir, or is longer than %d bytes", name, maxValue)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("file: %q cannot be read in --credentials-dir", name)
	}
	value := trimmed(string(b))
	if value == "" {
		return "", fmt.Errorf("file: %q in --credentials-dir is empty", name)
	}
	return value, nil
}

// trimmed is a value without the line ends that editors put behind it.
func trimmed(value string) string { return strings.TrimRight(value, "\r\n") }

func (s *Sources) clientSecret(c *outriggerv1.ClientSecret, secrets Secrets) (string, error) {
	switch from := c.GetSource().(type) {
	case *outriggerv1.ClientSecret_Env:
		return envValue(from.Env)
	case *outriggerv1.ClientSecret_File:
		return s.fileValue(from.File)
	case *outriggerv1.ClientSecret_Secret:
		return secrets.value(from.Secret)
	}
	return "", errors.New("no source that this sidecar knows")
}
