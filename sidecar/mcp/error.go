package mcp

import (
	"encoding/json"
	"fmt"
	"strconv"
)

// Error codes: JSON-RPC's own, and those of MCP (basic, "Error Codes"). -32020 to -32099 belong to the specification.
const (
	CodeParseError     = -32700
	CodeInvalidRequest = -32600
	CodeMethodNotFound = -32601
	CodeInvalidParams  = -32602
	CodeInternalError  = -32603

	CodeHeaderMismatch     = -32020
	CodeMissingCapability  = -32021
	CodeUnsupportedVersion = -32022

	CodeResourceNotFound = -32002 // up to 2025-11-25; accepted from old servers, never sent
)

// Error is a refusal as JSON-RPC has it.
type Error struct {
	Code    int
	Message string
	Data    []byte // raw JSON; nil for none
	Status  int    // the HTTP status it goes with on the stateless wire
	ID      []byte // the token of the request's id; nil when it was not read
}

func (e *Error) Error() string { return fmt.Sprintf("%s (JSON-RPC error %d)", e.Message, e.Code) }

// AppendError appends the response that carries e to the request with that id, as one line. A nil id leaves the member
// out, as for a request whose id could not be read (basic, "Responses").
func AppendError(dst []byte, id []byte, e *Error) []byte {
	dst = append(dst, `{"jsonrpc":"2.0",`...)
	if id != nil {
		dst = append(dst, `"id":`...)
		dst = append(dst, id...)
		dst = append(dst, ',')
	}
	dst = append(dst, `"error":{"code":`...)
	dst = strconv.AppendInt(dst, int64(e.Code), 10)
	dst = append(dst, `,"message":`...)
	dst = appendString(dst, e.Message)
	if e.Data != nil {
		dst = append(dst, `,"data":`...)
		dst = Compact(dst, e.Data)
	}
	return append(dst, "}}"...)
}

// appendString appends s as a JSON string; bytes that are not UTF-8 become U+FFFD.
func appendString(dst []byte, s string) []byte {
	quoted, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string always has a form
	}
	return append(dst, quoted...)
}

// versionError answers a version that is not served, with those that are.
func versionError(code int, message string, supported []string, requested string) *Error {
	return &Error{Code: code, Message: message, Data: VersionsData(supported, requested), Status: 400}
}

// VersionsData is the data of an error that says which versions there are (basic/versioning, "Protocol Version Errors").
func VersionsData(supported []string, requested string) []byte {
	data, err := json.Marshal(struct {
		Supported []string `json:"supported"`
		Requested string   `json:"requested"`
	}{supported, requested})
	if err != nil {
		panic(err) // strings always have a form
	}
	return data
}
