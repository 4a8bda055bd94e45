package jwt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4/json"

	"github.com/outrigger-mesh/outrigger/sidecar/identity/fetch"
)

// Bounds of a fetch.
const (
	requestTimeout = 5 * time.Second  // one request, its body included
	fetchTimeout   = 10 * time.Second // metadata and keys
	maxDocument    = 512 << 10        // bytes of each
	relocate       = time.Hour        // how long metadata is believed about where the keys are
)

// Why a fetch failed, beside package fetch's errors.
var (
	errURL      = errors.New("not a URL that keys may be fetched from")
	errTooMany  = errors.New("too many keys")
	errStatus   = errors.New("unexpected status")
	errDocument = errors.New("not the document that was expected")
)

// results are the values of the label result of outrigger_jwks_fetches_total.
var results = [...]struct {
	label string
	err   error
}{
	{"ok", nil},
	{"timeout", context.DeadlineExceeded},
	{"refused_address", fetch.ErrAddress},
	{"refused_url", errURL},
	{"too_large", fetch.ErrTooLong},
	{"too_many", errTooMany},
	{"bad_status", errStatus},
	{"bad_document", errDocument},
	{"failed", nil}, // all others
}

// resultOf is the place among results of a fetch's error.
func resultOf(err error) int {
	if err == nil {
		return 0
	}
	for i, r := range results {
		if r.err != nil && errors.Is(err, r.err) {
			return i
		}
	}
	return len(results) - 1
}

// fetcher fetches the keys of one issuer. Not for concurrent use.
type fetcher struct {
	issuer string
	fixed  string // the configured jwks_url, or empty
	plain  bool   // whether http is allowed, which goes to loopback only
	client *http.Client

	found   string // jwks_uri of the metadata
	foundAt time.Time
}

func newFetcher(issuer, jwksURL string, client *http.Client) *fetcher {
	plain := strings.HasPrefix(issuer, "http://") || strings.HasPrefix(jwksURL, "http://")
	return &fetcher{issuer: issuer, fixed: jwksURL, plain: plain, client: client}
}

// fetch returns the issuer's keys, and how many of them cannot be used.
func (f *fetcher) fetch(ctx context.Context) (keys []*key, unusable int, err error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	defer f.client.CloseIdleConnections()
	at := f.fixed
	if at == "" {
		if at, err = f.locate(ctx); err != nil {
			return nil, 0, err
		}
	}
	document, err := f.get(ctx, at)
	if err == nil {
		keys, unusable, err = readKeys(document)
	}
	if err != nil {
		f.found = "" // perhaps it has moved
		return nil, 0, fmt.Errorf("keys: %w", err)
	}
	return keys, unusable, nil
}

// locate finds the jwks_uri in the issuer's metadata: the first document that is there and of this issuer has it.
func (f *fetcher) locate(ctx context.Context) (string, error) {
	if f.found != "" && time.Since(f.foundAt) < relocate {
		return f.found, nil
	}
	last := errURL
	for _, at := range metadataURLs(f.issuer) {
		keysAt, err := f.locateAt(ctx, at)
		if err == nil {
			f.found, f.foundAt = keysAt, time.Now()
			return keysAt, nil
		}
		last = err
		if !errors.Is(err, errStatus) && !errors.Is(err, errDocument) {
			break // the issuer is not well: what it has elsewhere is no better
		}
	}
	return "", fmt.Errorf("metadata: %w", last)
}

// locateAt reads the metadata at one place.
func (f *fetcher) locateAt(ctx context.Context, at string) (string, error) {
	document, err := f.get(ctx, at)
	if err != nil {
		return "", err
	}
	keysAt, err := f.keysURL(document)
	if err != nil {
		return "", fmt.Errorf("%s: %w", at, err)
	}
	return keysAt, nil
}

// keysURL reads metadata. Its issuer must be the one that was asked (RFC 8414, section 3.3).
func (f *fetcher) keysURL(document []byte) (string, error) {
	var m struct {
		Issuer  string `json:"issuer"`
		JWKSURI string `json:"jwks_uri"`
	}
	if err := json.Unmarshal(document, &m); err != nil {
		return "", fmt.Errorf("%w: not JSON", errDocument)
	}
	if m.Issuer != f.issuer {
		return "", fmt.Errorf("%w: it is of another issuer", errDocument)
	}
	if m.JWKSURI == "" {
		return "", fmt.Errorf("%w: no jwks_uri", errDocument)
	}
	return m.JWKSURI, nil
}

// metadataURLs are where an issuer's metadata may be, in the order in which MCP clients look (MCP 2026-07-28,
// authorization server discovery): RFC 8414, then OpenID Connect Discovery with its path inserted, and appended.
func metadataURLs(issuer string) []string {
	u, err := url.Parse(issuer)
	if err != nil {
		return nil
	}
	const oauth, openid = "/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"
	base, path := u.Scheme+"://"+u.Host, strings.TrimSuffix(u.EscapedPath(), "/")
	if path == "" {
		return []string{base + oauth, base + openid}
	}
	return []string{base + oauth + path, base + openid + path, base + path + openid}
}

// get fetches one document from a URL, which an issuer may have named: https, or http where the configuration has such.
func (f *fetcher) get(ctx context.Context, at string) ([]byte, error) {
	u, err := url.Parse(at)
	if err != nil || u.Host == "" || u.User != nil || u.Scheme != "https" && !(u.Scheme == "http" && f.plain) {
		return nil, errURL
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, errURL
	}
	r.Header.Set("Accept", "application/json, application/jwk-set+json")
	answer, err := f.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %w %d", at, errStatus, answer.StatusCode)
	}
	document, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	return document, nil
}
