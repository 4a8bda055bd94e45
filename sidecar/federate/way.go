package federate

import (
	"errors"
	"net/http"
	"strings"
)

// A list that is fetched because a client asked says by which way that request came (Via, RFC 9110, 7.6.3), as a call
// does, and is kept for requests by that way alone: two federations that name each other would otherwise list their own
// tools through each other, once more each time.

const headerVia = "Via"

// reasonLoop is why a member's part is missing that leads back to where the request came from.
const reasonLoop = "loop"

var errLoop = errors.New("it leads back here")

// wayOf are the sidecars that a request passed, in Via's form. Other proxies do not matter here.
func wayOf(h http.Header) string {
	lines := h[headerVia]
	if len(lines) == 0 {
		return ""
	}
	var way []string
	for _, line := range lines {
		for hop := range strings.SplitSeq(line, ",") {
			if fields := strings.Fields(hop); len(fields) > 1 && len(way) < maxHops {
				way = append(way, fields[0]+" "+fields[1])
			}
		}
	}
	return strings.Join(way, ", ")
}

// maxHops is how many are told apart. A way that is longer is a loop of other proxies.
const maxHops = 32

// header is that of a request on behalf of one of the scope.
func (s scope) header() http.Header {
	if s.way == "" {
		return nil
	}
	return http.Header{headerVia: {s.way}}
}
