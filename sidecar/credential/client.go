package credential

import (
	"net/http"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/identity/fetch"
)

// maxClients is how many are kept; then they are all let go, and made again as they are named.
const maxClients = 256

// clients are shared by the Sources that ask in the same way, which one configuration after another makes.
type clients struct {
	mu   sync.Mutex // guards below
	kept map[clientKey]*http.Client
}

type clientKey struct {
	caFile, authorities string
	private             bool
	timeout             time.Duration
}

func newClients() *clients { return &clients{kept: make(map[clientKey]*http.Client)} }

// get makes a client, or finds the one that is there. authorities are what o.CAFile holds now.
func (c *clients) get(o fetch.Options, authorities []byte) (*http.Client, error) {
	key := clientKey{o.CAFile, string(authorities), o.PrivateAddresses, o.Timeout}
	c.mu.Lock()
	defer c.mu.Unlock()
	if found := c.kept[key]; found != nil {
		return found, nil
	}
	made, err := fetch.New(o)
	if err != nil {
		return nil, err
	}
	if len(c.kept) >= maxClients {
		c.dropLocked()
	}
	c.kept[key] = made
	return made, nil
}

// dropLocked lets all go. Requests under way end as they would.
func (c *clients) dropLocked() {
	for _, one := range c.kept {
		one.CloseIdleConnections()
	}
	clear(c.kept)
}

func (c *clients) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropLocked()
}
