package proxy

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

func TestTheLogHearsWhyAServerFailedButNotEachTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := slog.New(slog.NewTextHandler(&out, nil))
		var c complaints
		err := &upstream.Error{Kind: upstream.Unreachable, Upstream: "files", Detail: "no connection", Cause: errors.New("no such host")}
		for range 1000 {
			c.complain(log, err)
		}
		if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "no such host") || !strings.Contains(got, "upstream=files") {
			t.Errorf("1000 failures at once: got %q, want one line with the cause", got)
		}
		time.Sleep(complainEvery)
		c.complain(log, err)
		if got := out.String(); strings.Count(got, "\n") != 2 || !strings.Contains(got, "others_since_the_last_line=999") {
			t.Errorf("after a while: got %q, want a second line that counts the others", got)
		}
	})
}
