package tolegacy

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/seal"
)

// purpose separates request states from all else that is sealed.
const purpose = "request-state"

// state is what a requestState seals: which call goes on with a retry, and what the retry must be like. A client keeps
// it for the fleet; nobody else can read or write it.
//
// Sidecars of different ages read it: add fields; never reuse a name.
type state struct {
	Upstream  string `json:"u"`
	Holder    string `json:"h,omitempty"` // Holder.ID; empty when nothing is held, and a retry runs the call again
	Address   string `json:"a,omitempty"` // Holder.Address
	Call      string `json:"c,omitempty"` // the held call
	Round     int    `json:"r"`           // from 1: how often the client was asked, with this
	Principal []byte `json:"p"`           // digest
	Digest    []byte `json:"d"`           // of the request
	Expires   int64  `json:"e"`           // in seconds since 1970
}

// sealState makes the requestState. It is good at the binding's endpoint alone: what a client may do at another, with the
// same upstream, is that one's to say.
func (s *Server) sealState(binding string, st state) string {
	st.Upstream = s.name
	st.Expires = time.Now().Add(s.settings.heldTimeout).Unix() + 1
	return s.sealer.Seal(purpose, encode(st), []byte(binding))
}

// What a client is told of a state that does not help it. Only a new call does.
const (
	notAState    = "params.requestState is not one that was given here, or it was altered"
	notThisCall  = "params.requestState belongs to another request: a retry repeats its method, name or uri, and arguments"
	notThisOwner = "params.requestState was given to another caller"
	tooLate      = "the time to answer is over, and the call was cancelled: start it again"
	usedBefore   = "params.requestState was used already: only the newest one goes on with the call"
	notHeld      = "the call is not held any more: it ended, was given up, or its sidecar was restarted. Start it again"
	heldFarAway  = "the call is held by another sidecar, which cannot be reached from here: start it again"
)

// openState reads the requestState of a retry and holds the retry to it.
func (s *Server) openState(o *order) (*state, *mcp.Error) {
	text, err := s.sealer.Open(purpose, o.state, []byte(o.call.Binding))
	var st state
	switch {
	case errors.Is(err, seal.ErrUnknownKey):
		return nil, invalid(notHeld)
	case err != nil || json.Unmarshal(text, &st) != nil || st.Upstream != s.name:
		return nil, invalid(notAState)
	case string(st.Principal) != string(principalDigest(o.principal)):
		return nil, invalid(notThisOwner)
	case string(st.Digest) != string(digest(o.m)):
		return nil, invalid(notThisCall)
	case time.Now().Unix() > st.Expires:
		return nil, invalid(tooLate)
	}
	return &st, nil
}
