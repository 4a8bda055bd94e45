package e2e

import (
	"fmt"
	"strings"
	"testing"
)

const (
	appURI  = "ui://desk/board.html"
	appMeta = `"_meta" : {"ui":{ "resourceUri":"ui://desk/board.html","visibility":["model", "app"],"n":9007199254740993, "\u0061":1.0 },"com.acme/x":null}`
	appPage = `{"uri":"ui://desk/board.html", "mimeType":"text/html;profile=mcp-app","text":"<script>call(\"re\u0066resh\")<\/script>\u00e9",` +
		`"_meta":{"ui":{"csp":{ "connectDomains":["https://api.example.com"]},"prefersBorder":1e0}}}`
	appCapabilities = `{"tools":{},"resources":{},"extensions":{"io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]}}}`
)

// appTool is one of an app's tools: but for its name, what a client has to see of it.
const appTool = `"title":"Board","inputSchema":{"type":"object"},` + appMeta

// newApp makes a server with an MCP App: show has a page, which calls refresh by that name. Neither the page nor refresh
// tells of the other servers there may be.
func newApp(version string) *script {
	more := ""
	if version == versionStateless {
		more = `"resultType":"complete","ttlMs":60000,"cacheScope":"public",`
	}
	tools := fmt.Sprintf(`[{"name":"show",%s},{"name":"refresh",%[1]s}]`, appTool)
	return &script{version: version, capabilities: appCapabilities, answers: map[string]func(*scripted) string{
		"ping":           always(`"result":{}`),
		"tools/list":     always(`"result":{` + more + `"tools":` + tools + `}`),
		"resources/list": always(`"result":{` + more + `"resources":[{"name":"board","uri":"ui://desk/board.html",` + appMeta + `}]}`),
		"resources/read": func(q *scripted) string {
			if q.Params.URI != appURI {
				return `"error":{"code":-32602,"message":"no such page"}`
			}
			return `"result":{` + more + `"contents":[` + appPage + `]}`
		},
		"tools/call": func(q *scripted) string {
			said := `"content":[{"type":"text","text":"` + q.Params.Name + `ed"}],"structuredContent":{"n":1E2},` + appMeta
			if version == versionStateless {
				return `"result":{"resultType":"complete",` + said + `}`
			}
			return `"result":{` + said + `}`
		},
	}}
}

// An app's tools, page and results keep every byte on their way between clients and servers of both eras, through a
// binding of one server and through federations; only the names of tools differ there, and both they and, without
// prefixes, the names that the page calls work.
func TestAppsPassUntouched(t *testing.T) {
	t.Parallel()
	other := newWorkshop("other", versionStateless).serve(t)
	resources := []string{httpUpstream("other", other.url)}
	for _, era := range eras {
		resources = append(resources, httpUpstream(era.name, newApp(era.version).serve(t).url),
			binding(era.name, "/"+era.name, era.name, ""),
			federation(era.name+"-prefixed", "/"+era.name+"/prefixed", "", "other", era.name),
			federation(era.name+"-plain", "/"+era.name+"/plain", ", names: {prefix: never}", "other", era.name))
	}
	s, _ := fileSidecar(t, nil, resources...)
	s.serves()
	for _, server := range eras {
		for path, prefix := range map[string]string{"": "", "/prefixed": server.name + "_", "/plain": ""} {
			path = "/" + server.name + path
			for _, client := range eras {
				t.Run(client.name+" client at "+path, func(t *testing.T) {
					showsApp(t, dialWire(t, s.url+path, client.version), prefix)
				})
			}
		}
	}
}

// showsApp does what a host does with an app: finds its tool, calls it, reads its page, and calls for that.
func showsApp(t *testing.T, w *wire, prefix string) {
	t.Helper()
	contains := func(what, got, want string) {
		t.Helper()
		if !strings.Contains(got, want) {
			t.Errorf("%s answered\n%s\nwithout\n%s", what, got, want)
		}
	}
	tools := w.raw(t, "tools/list", "", "")
	for _, tool := range []string{"show", "refresh"} {
		tool := prefix + tool
		contains("tools/list", tools, fmt.Sprintf(`{"name":%q,%s}`, tool, appTool))
		got := w.raw(t, "tools/call", tool, fmt.Sprintf(`"name":%q,"arguments":{}`, tool))
		contains(tool, got, `"text":"`+strings.TrimPrefix(tool, prefix)+`ed"}],"structuredContent":{"n":1E2},`+appMeta)
	}
	contains("resources/list", w.raw(t, "resources/list", "", ""), `{"name":"board","uri":"ui://desk/board.html",`+appMeta+`}`)
	contains("resources/read", w.raw(t, "resources/read", appURI, fmt.Sprintf(`"uri":%q`, appURI)), `[`+appPage+`]`)
}

// A host that shows apps says so, and is told of a server that has some, whichever era each is of.
func TestAppsAreOfferedInEveryCell(t *testing.T) {
	t.Parallel()
	const extension = `"io.modelcontextprotocol/ui"`
	var resources []string
	for _, era := range eras {
		resources = append(resources, httpUpstream(era.name, newApp(era.version).serve(t).url), binding(era.name, era.path, era.name, ""))
	}
	s, _ := fileSidecar(t, nil, append(resources, federation("both", "/both", "", "stateless", "legacy"))...)
	s.serves()
	for _, path := range []string{legacyPath, statelessPath, "/both"} {
		if r := newAsker(t, s.url+path, "").asks(t, "server/discover", "", ""); !strings.Contains(r.raw, extension) {
			t.Errorf("%s: discover answered %v, want %s", path, r, extension)
		}
		got := newWire(t, s.url+path, versionLegacy).raw(t, "initialize", "", fmt.Sprintf(
			`"protocolVersion":%q,"capabilities":{"extensions":{%s:{}}},"clientInfo":{"name":"host","version":"1"}`, versionLegacy, extension))
		if !strings.Contains(got, extension) {
			t.Errorf("%s: initialize answered %s, want %s", path, got, extension)
		}
	}
}
