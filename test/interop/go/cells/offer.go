// Package cells has what the clients and servers of the cells have in common: what a server offers (offer.json, which the
// servers in JavaScript read too), and the checks that every client runs against every server.
package cells

import (
	_ "embed"
	"encoding/json"
)

//go:embed offer.json
var offerJSON []byte

// Offer is what a server of the cells offers.
type Offer struct {
	Name, Version, Instructions string
	PageSize                    int
	Tools                       []Tool
	Resources                   []struct{ URI, Name, MIMEType string }
	Template                    struct{ URITemplate, Name, MIMEType string }
	Prompt                      struct{ Name, Description string }
	Grown                       string // the name of the entry by which a list changes
	Texts                       struct {
		Note, Bytes, Owner, Visit, URL, Sample, Failure, Refusal, Quiet, Loud string
	}
	Refusal struct {
		Code int
		Data json.RawMessage
	}
}

// Tool is one that a server offers, its schemas as they are written.
type Tool struct {
	Name, Title, Description  string
	InputSchema, OutputSchema json.RawMessage
	Annotations               struct{ ReadOnlyHint *bool }
	Meta                      map[string]any `json:"_meta"`
}

// TheOffer is the one of offer.json.
var TheOffer = func() (o Offer) {
	if err := json.Unmarshal(offerJSON, &o); err != nil {
		panic(err)
	}
	return o
}()

// URIs of what a server offers.
const (
	NoteURI  = "bazaar://note"
	BytesURI = "bazaar://bytes"
	GrownURI = "bazaar://grown"
)

// OwnerSchema is what the answer to the question for the owner must be.
var OwnerSchema = json.RawMessage(`{"type":"object","properties":{"owner":{"type":"string"}},"required":["owner"]}`)
