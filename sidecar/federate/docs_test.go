package federate

import (
	"os"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

func TestTheExampleInTheDocsIsWhatDefaultsAre(t *testing.T) {
	page, err := os.ReadFile("../../docs/federation.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```yaml\n")
	example, _, _ := strings.Cut(rest, "```")
	objs, errs := resource.Load("docs/federation.md", []byte(example))
	if len(errs) > 0 || len(objs) != 3 {
		t.Fatalf("%d resources, %v", len(objs), errs)
	}
	said := objs[2].(*outriggerv1.Binding)
	plain := proto.Clone(said).(*outriggerv1.Binding)
	plain.Names, plain.Lists, plain.PartialFailure = nil, nil, 0
	plain = resource.WithDefaults(plain)
	said = resource.WithDefaults(said)
	if !proto.Equal(said.Names, plain.Names) || !proto.Equal(said.Lists, plain.Lists) {
		t.Errorf("the page says %v %v, defaults are %v %v", said.Names, said.Lists, plain.Names, plain.Lists)
	}
}
