package api

import (
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// strictJSON is protobuf's JSON form in which, unlike connect's own codec, a field that does not exist is a mistake:
// whoever writes requests by hand, misspells dryRun and has everything stored would not learn it otherwise.
type strictJSON struct{ name string }

// jsonCodecs are strictJSON by each of the names that connect gives the form.
func jsonCodecs() connect.HandlerOption {
	return connect.WithHandlerOptions(connect.WithCodec(strictJSON{"json"}), connect.WithCodec(strictJSON{"json; charset=utf-8"}))
}

func (c strictJSON) Name() string { return c.name }

func (strictJSON) Marshal(message any) ([]byte, error) {
	m, ok := message.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is not a message", message)
	}
	return protojson.Marshal(m)
}

func (strictJSON) Unmarshal(data []byte, message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is not a message", message)
	}
	return protojson.Unmarshal(data, m)
}
