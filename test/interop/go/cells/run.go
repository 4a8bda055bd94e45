package cells

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"
)

// limit is how long one check may take.
const limit = 15 * time.Second

// Run runs every check with a client of its own at each server, given as name=url, and prints
// "server/check: pass|fail|skip detail" for each. CANNOT in the environment has the checks that a peer cannot pass:
// {server: {check: reason}}. It reports whether none failed.
func Run(name string, stateless bool, open func(*Heard, *Tap) Client, servers []string) (ok bool) {
	var cannot map[string]map[string]string
	if text := os.Getenv("CANNOT"); text != "" {
		if err := json.Unmarshal([]byte(text), &cannot); err != nil {
			panic(err)
		}
	}
	ok = true
	for _, s := range servers {
		server, url, _ := strings.Cut(s, "=")
		heard, tap := NewHeard(), NewTap(name)
		c := &cell{Client: open(heard, tap), url: url, name: name, stateless: stateless, heard: heard, tap: tap}
		for _, k := range checks {
			if k.name == "ping" && stateless {
				continue // which that wire does not have
			}
			if why := cannot[server][k.name]; why != "" {
				fmt.Printf("%s/%s: skip %s\n", server, k.name, why)
				continue
			}
			err := c.run(server, k)
			ok = ok && err == nil
			if k.name == "connect" && err != nil {
				break
			}
		}
	}
	return ok
}

// run runs one check and prints what came of it.
func (c *cell) run(server string, k check) error {
	ctx, stop := context.WithTimeout(context.Background(), limit)
	defer stop()
	began := time.Now()
	err := k.run(c, ctx)
	said := "pass"
	if err != nil {
		said = "fail " + strings.Join(strings.Fields(err.Error()), " ")
		said = said[:min(len(said), 400)]
	}
	fmt.Printf("%s/%s: %s (%d ms)\n", server, k.name, said, time.Since(began).Milliseconds())
	return err
}
