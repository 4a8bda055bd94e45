package main

import (
	"bytes"
	"fmt"
	"strings"
)

const (
	stateless = "stateless"
	legacy    = "legacy"
	sse       = "sse"

	requestBytes = 350 // of a call's body
	answerBytes  = 250 // of an answer's JSON

	firstID = 100_000_000 // ids are nine digits, so that a call is made by writing digits over those of the last
	idKey   = `"id":`

	initializeBody = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",` +
		`"capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}`
	initializedBody = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
)

// callBody is a tools/call of an era, requestBytes long. The tool's name says in which form the answer shall come.
func callBody(era, answer string) []byte {
	meta := ""
	if era == stateless {
		meta = `,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
			`"io.modelcontextprotocol/clientCapabilities":{}}`
	}
	head := fmt.Sprintf(`{"jsonrpc":"2.0",%s%d,"method":"tools/call","params":{"name":%q,"arguments":{"text":"`,
		idKey, firstID, answer)
	tail := `"}` + meta + `}}`
	return []byte(head + strings.Repeat("a", requestBytes-len(head)-len(tail)) + tail)
}

// answerParts are what stands before and after the id in an answer, answerBytes long with a nine-digit id.
func answerParts(era string) (before, after string) {
	before = `{"jsonrpc":"2.0",` + idKey
	after = `,"result":{"content":[{"type":"text","text":"`
	tail := `"}]}}`
	if era == stateless {
		tail = `"}],"resultType":"complete"}}`
	}
	return before, after + strings.Repeat("b", answerBytes-len(before)-9-len(after)-len(tail)) + tail
}

// requestHead is a POST's head up to and including the empty line. The session may be empty.
func requestHead(era, host, path, method, tool, session string, length int) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n"+
		"Accept: application/json, text/event-stream\r\nContent-Length: %d\r\n", path, host, length)
	if era == stateless {
		fmt.Fprintf(&b, "MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: %s\r\nMcp-Name: %s\r\n", method, tool)
	} else if session != "" {
		fmt.Fprintf(&b, "MCP-Protocol-Version: 2025-11-25\r\nMcp-Session-Id: %s\r\n", session)
	}
	b.WriteString("\r\n")
	return b.Bytes()
}
