package scenario

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/outrigger-mesh/outrigger/bench/layout"
	"github.com/outrigger-mesh/outrigger/bench/null/server"
	"github.com/outrigger-mesh/outrigger/bench/record"
)

// What a row of federation is about.
const (
	ofLists = "tools/list over HTTP"
	ofWarm  = "warm merge in process"
	ofCold  = "cold merge in process"
)

const (
	// federationConns is how many connections ask for lists: few, since the largest answer has 24 MB.
	federationConns = "8"
	// pageTools is how many tools a page has by default.
	pageTools = 1000
	// wholePage is a page that holds the largest list.
	wholePage = 100_000
)

var _ = register(Scenario{
	Scenario: record.Scenario{
		Name:     "federation",
		Title:    "One list of many servers' tools",
		Question: "What does it cost to offer many servers' tools as one list?",
		Method: "`size` is how many upstreams there are, and how many tools each has; a tool has some 1.2 KB. `tools` is how many an " +
			"answer holds: all of them, or the default page of 1,000.\n\n" +
			"`" + ofLists + "`: a sidecar whose binding names that many Upstreams and puts a prefix before their tools' names, " +
			federationConns + " connections, closed loop, warm. Of each answer the array of tools is compared, byte for byte, with the " +
			"upstreams' own lists under the new names: a tool that is missing, out of order or altered fails the run. " +
			"Such answers cost the load generator as much as the sidecar: `load_us` is its CPU per call, and `cpu_us` the sidecar's alone.\n\n" +
			"The other rows are the same merge without processes and connections, from upstreams in memory that answer at once, before " +
			"the answer is written out. `" + ofWarm + "` is what a list costs that is there; `" + ofCold + "` a federation that is made " +
			"anew, asks each upstream, merges what they say, and is closed.",
		Fields: []string{"of", "era", "size", "tools"},
		Figures: []record.Figure{figureCPU, figureCalls,
			{Name: "mib_s", Title: "answers, MiB/s", Better: "higher", Digits: 0},
			figureP50, figureP99, figureRSS,
			{Name: "load_us", Title: "load generator's CPU per call, us", Better: "lower", Digits: 1},
			{Name: "op_us", Title: "a merge, us", Better: "lower", Digits: 2},
			{Name: "op_bytes", Title: "a merge, B allocated", Better: "lower", Digits: 0},
			{Name: "op_allocs", Title: "a merge, allocations", Better: "lower", Digits: 0}},
		Charts: []record.Chart{
			{Name: "lists", Title: "CPU for a merged tools/list over its length", Kind: "line", X: "tools", Y: "cpu_us", Series: "era", LogX: true, LogY: true,
				Where: map[string]string{"of": ofLists}},
			{Name: "merges", Title: "A merge in process", Kind: "line", X: "tools", Y: "op_us", Series: "of", LogX: true, LogY: true},
		},
		Targets: []record.Target{
			{Name: "a warm list of 1,000 tools from 20 upstreams, in process, us", Figure: "op_us", Subject: "sidecar",
				Where: Case{"of": ofWarm, "size": "20x50"}, Most: 15, Gate: 60},
		},
	},
	Needs: OwnProcesses,
	Run:   runFederation,
})

func runFederation(ctx context.Context, b *Bench) error {
	sidecar, err := b.federations(ctx)
	if err != nil {
		return err
	}
	c := Contest{
		Scenario: "federation",
		Subjects: []*Subject{{"sidecar", sidecar, sidecar.URL}},
		Cases:    b.ofEra(listCases(b.Short)),
		Path:     federationPath,
		Load: func(k Case) []string {
			return []string{"-era", k["era"], "-conns", federationConns, "-op", "list", "-expect-file", expectedFile(b.Layout, k)}
		},
		Figures: listFigures,
	}
	for _, k := range c.Cases {
		if err := os.WriteFile(expectedFile(b.Layout, k), expectedTools(k), 0o644); err != nil {
			return err
		}
	}
	merges := mergeCases(b.Short)
	b.Plan(b.Rows(c) + b.heldRounds()*len(merges))
	if err := b.Contest(ctx, c); err != nil {
		return err
	}
	return b.merges(ctx, merges)
}

// listCases are the lists over HTTP. A legacy client's answer is translated, which the sidecar does of 16 MiB at most: of
// the largest list it gets a page.
func listCases(short bool) []Case {
	whole := []Case{{"size": "1x10", "tools": "10"}, {"size": "5x20", "tools": "100"}, {"size": "20x50", "tools": "1000"}, {"size": "20x1000", "tools": "20000"}}
	cases := whole[:4:4]
	for i, k := range cases {
		cases[i] = k.with("of", ofLists).with("era", "stateless")
	}
	if short {
		return append(cases, cases[2].with("era", "legacy"))
	}
	for _, k := range cases[:3:3] {
		cases = append(cases, k.with("era", "legacy"))
	}
	return append(cases, cross("of", ofLists, "size", "20x1000", "tools", strconv.Itoa(pageTools), "era", "stateless,legacy")...)
}

// listFigures are a row's.
func listFigures(row record.Row, s *Subject, _ map[string]record.Row) map[string]float64 {
	v := callFigures(row, s)
	delete(v, "p99_over_p50")
	v["mib_s"] = v["calls_s"] * float64(len(expectedTools(row.Case))) / (1 << 20)
	if row.Load.Calls > 0 {
		v["load_us"] = 1e6 * row.Load.CPUSeconds / float64(row.Load.Calls)
	}
	return v
}

// upstreams are how many a case has, and how many tools each has.
func (c Case) upstreams() (count, each int) {
	if _, err := fmt.Sscanf(c["size"], "%dx%d", &count, &each); err != nil {
		panic("case size=" + c["size"] + " is not two numbers")
	}
	return count, each
}

// prefixOf is what stands before the names of an upstream's tools.
func prefixOf(upstream int) string { return fmt.Sprintf("s%02d", upstream+1) }

// expectedTools is the array of tools that a case's answer must hold: the upstreams' lists, one after the other.
func expectedTools(k Case) json.RawMessage {
	count, each := k.upstreams()
	var lists [][]byte
	for i := range min(count, int(k.number("tools"))/each) {
		list := server.Tools(server.ToolNames(prefixOf(i)+"_", each))
		lists = append(lists, list[1:len(list)-1])
	}
	return append(append([]byte{'['}, bytes.Join(lists, []byte{','})...), ']')
}

// expectedFile is where that array is written for the load generator.
func expectedFile(l *layout.Layout, k Case) string {
	return filepath.Join(l.Dir(), "expected-"+k["size"]+"-"+k["tools"]+".json")
}

// federationPath is the endpoint at which a case's tools are one page.
func federationPath(k Case) string { return "/" + k["size"] + "/" + k["tools"] }

// federations starts, for each number of tools, a server that does nothing, and a sidecar with an endpoint for each
// size whose Upstreams are all that server.
func (b *Bench) federations(ctx context.Context) (*layout.Process, error) {
	servers := map[int]string{} // URLs by number of tools
	seen := map[string]bool{}
	var yaml strings.Builder
	for _, k := range listCases(false) {
		if seen[federationPath(k)] {
			continue
		}
		seen[federationPath(k)] = true
		_, each := k.upstreams()
		if servers[each] == "" {
			up, err := b.Layout.Null(ctx, "-tools", strconv.Itoa(each))
			if err != nil {
				return nil, err
			}
			servers[each] = up.URL
		}
		writeFederation(&yaml, k, servers[each])
	}
	return b.Layout.Sidecar(ctx, yaml.String())
}

// writeFederation adds a case's Upstreams and its Binding to a configuration.
func writeFederation(yaml *strings.Builder, k Case, serverURL string) {
	count, each := k.upstreams()
	name := "f" + k["size"] + "-" + k["tools"]
	var references []string
	for i := range count {
		upstream := name + "-" + prefixOf(i)
		fmt.Fprintf(yaml, "kind: Upstream\nname: %s\nspec: {http: {url: %q}}\n---\n", upstream, serverURL)
		references = append(references, fmt.Sprintf("{name: %s, prefix: %s}", upstream, prefixOf(i)))
	}
	page := pageTools
	if int(k.number("tools")) == count*each {
		page = wholePage
	}
	fmt.Fprintf(yaml, "kind: Binding\nname: %s\nspec: {selector: {}, path: %s, upstreams: [%s], names: {prefix: always}, lists: {pageSize: %d}}\n---\n",
		name, federationPath(k), strings.Join(references, ", "), page)
}
