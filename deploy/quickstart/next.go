package main

import (
	"fmt"
	"strings"
)

// sum is what the printed calls of the tool add answer with.
const sum = `"structuredContent":{"sum":42}`

// statelessLine is a call on the newer wire: one request that carries everything.
func (m *mesh) statelessLine() string {
	return lines(`curl -s `+m.endpoint()+` \`,
		`  -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' \`,
		`  -H 'MCP-Protocol-Version: 2026-07-28' -H 'Mcp-Method: tools/call' -H 'Mcp-Name: add' \`,
		`  -d '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"add","arguments":{"a":2,"b":40},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}'`)
}

// legacyLine is a call on the older wire: a session is opened, its id kept, and the call made in it.
func (m *mesh) legacyLine() string {
	return lines(`mcp() { curl -s `+m.endpoint()+` -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' -H 'MCP-Protocol-Version: 2025-11-25' "$@"; }`,
		`id=$(mcp -D - -o /dev/null -d '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"curl","version":"1"}}}' | tr -d '\r' | awk 'tolower($1) == "mcp-session-id:" {print $2}')`,
		`mcp -H "Mcp-Session-Id: $id" -d '{"jsonrpc":"2.0","method":"notifications/initialized"}'`,
		`mcp -H "Mcp-Session-Id: $id" -d '{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"add","arguments":{"a":2,"b":40}}}'`)
}

// apiLine asks the management API as any HTTP client can.
func (m *mesh) apiLine() string {
	return lines(`curl -s http://`+m.at.api+`/outrigger.v1.ResourceService/ListSidecars -H 'Content-Type: application/json' \`,
		`  -H "Authorization: Bearer $(cat `+m.adminToken()+`)" -d '{}'`)
}

// environmentLine tells rigctl where the control plane is.
func (m *mesh) environmentLine() string {
	return "export RIGCTL_SERVER=http://" + m.at.api + " RIGCTL_TOKEN_FILE=" + m.adminToken()
}

// rigctlLine asks the same through the command line.
func (m *mesh) rigctlLine() string { return m.program("rigctl") + " sidecars" }

func lines(all ...string) string { return strings.Join(all, "\n") }

// invite prints what to try next.
func (m *mesh) invite() {
	fmt.Fprintf(m.out, `
Up. Ctrl-C stops it all. To try next, from another terminal in this directory:

  MCP endpoint     %s, on both wires, for any MCP client
  sidecar          http://%s/metrics, also /readyz and /config
  control plane    http://%s/metrics, also /readyz
  API              http://%s, with the token in %s
  configuration    %s
  logs             %s/*.log
`, m.endpoint(), m.at.sidecarAdmin, m.at.planeAdmin, m.at.api, m.adminToken(), m.configurationFile(), m.dir)
	m.paste("A call on the 2026-07-28 wire, which is one request:", m.statelessLine())
	m.paste("A call on the 2025-11-25 wire, which needs a session:", m.legacyLine())
	m.paste("What runs where, by curl and by rigctl:", m.apiLine(), m.environmentLine(), m.rigctlLine(),
		m.program("rigctl")+" get bindings -o wide")
	fmt.Fprintln(m.out, "\ndocs/quickstart.md goes on from here.")
}

// paste prints lines for a shell.
func (m *mesh) paste(about string, all ...string) {
	fmt.Fprintf(m.out, "\n%s\n\n%s\n", about, lines(all...))
}
