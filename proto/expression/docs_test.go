package expression

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"cel.dev/cel-go/cel"
)

func TestThePolicyPageListsEveryVariableWithItsType(t *testing.T) {
	page, err := os.ReadFile("../../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Expressions")
	section, _, _ = strings.Cut(section, "\n### ")
	var got []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([\\w.]+)` \\| (\\S.*?) \\|").FindAllStringSubmatch(section, -1) {
		got = append(got, row[1]+" "+row[2])
	}
	var want []string
	for _, v := range variables {
		if of, ok := fields[v.kind.TypeName()]; ok {
			for name, f := range of {
				want = append(want, v.text+"."+name+" "+cel.FormatCELType(f.Type))
			}
		} else {
			want = append(want, strings.Replace(v.text+" "+cel.FormatCELType(v.kind), "google.protobuf.Timestamp", "timestamp", 1))
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the page has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestThePolicyPageHasTheLimits(t *testing.T) {
	page, err := os.ReadFile("../../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Limits")
	for _, want := range []string{
		fmt.Sprintf("%d characters, %d nodes, %d levels, macros %d deep", maxText, maxNodes, maxNesting, maxLoops),
		fmt.Sprintf("texts of %d characters and lists of %d | %d units", usual.text, usual.list, maxUsual),
		fmt.Sprintf("one evaluation | %d units", maxCost),
		fmt.Sprintf("%d instructions", maxRegex),
		fmt.Sprintf("%d bytes", maxMatched),
		fmt.Sprintf("%d, %d deep", maxMembers, maxDepth),
	} {
		if !strings.Contains(section, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
}
