package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/outrigger-mesh/outrigger/controlplane/store"
	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

func TestStoreErrorsHaveCodes(t *testing.T) {
	a := &API{options: Options{Log: slog.New(slog.DiscardHandler)}}
	for _, row := range []struct {
		err  error
		want connect.Code
	}{
		{store.ErrCompacted, connect.CodeOutOfRange},
		{store.ErrLagging, connect.CodeUnavailable},
		{store.ErrTooLarge, connect.CodeResourceExhausted},
		{context.DeadlineExceeded, connect.CodeUnavailable}, // the store's own deadline
		{errors.New("no leader"), connect.CodeUnavailable},
	} {
		if got := connect.CodeOf(a.failed(t.Context(), fmt.Errorf("store: %w", row.err))); got != row.want {
			t.Errorf("%v: %v, want %v", row.err, got, row.want)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.failed(ended, errors.New("ended")); !errors.Is(err, context.Canceled) {
		t.Errorf("after the caller went away: %v, want its context's error", err)
	}
}

func TestAnErrorCarriesABoundedNumberOfMistakes(t *testing.T) {
	var mistakes resource.Errors
	for i := range 3 * maxViolations {
		mistakes = append(mistakes, resource.Error{Path: fmt.Sprint("resources[", i, "].name"), Message: "required"})
	}
	err := invalid(mistakes)
	if got := len(violations(t, err)); got != maxViolations {
		t.Errorf("%d violations, want %d", got, maxViolations)
	}
	if want := "invalid_argument: resources[0].name: required (and 299 more)"; err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}
}

// FuzzApplyRequest reads requests as strangers with a token may make them: the bytes of any message.
func FuzzApplyRequest(f *testing.F) {
	for _, r := range []*outriggerv1.Resource{pair(1, 1)[0], pair(1, 1)[1], {Kind: "Upstream"}, {Revision: -1}, secretResource("a", "b")} {
		seed, err := proto.Marshal(&outriggerv1.ApplyRequest{Resources: []*outriggerv1.Resource{r, r}})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(seed)
	}
	secrets, err := store.NewSecrets([][]byte{make([]byte, store.SecretKeySize)})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var req outriggerv1.ApplyRequest
		if proto.Unmarshal(data, &req) != nil {
			return
		}
		d := &desired{generation: -1, byRef: map[string]*outriggerv1.Resource{}}
		g := read(req.Resources)
		g.secrets = secrets
		if g.check(d) != nil {
			return
		}
		writes, _, err := g.writes(d)
		if err != nil && connect.CodeOf(err) != connect.CodeAborted {
			t.Errorf("a request that was checked is refused: %v\n%v", err, &req)
		}
		for _, w := range writes { // what is stored is read the same
			r, err := secrets.OpenResource(store.Entry{Key: w.Key, Value: w.Value})
			if err != nil {
				t.Fatal(err)
			}
			if o, mistakes := resource.Check(r); len(mistakes) > 0 || store.ResourceKey(r.Kind, o.GetName()) != w.Key {
				t.Errorf("stored under %s: %v, %v", w.Key, r, mistakes)
			}
		}
	})
}

// secretResource is a Secret with one value.
func secretResource(key, value string) *outriggerv1.Resource {
	values := structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{key: structpb.NewStringValue(value)}})
	return &outriggerv1.Resource{Kind: "Secret", Name: "s", Spec: &structpb.Struct{Fields: map[string]*structpb.Value{"values": values}}}
}

func FuzzPageToken(f *testing.F) {
	f.Add(position{7, store.ResourceKey("Upstream", "weather")}.String())
	f.Add("NyByZXNvdXJjZXMv")
	f.Fuzz(func(t *testing.T, token string) {
		p, ok := parsePosition(token)
		if !ok || token == "" {
			return
		}
		if again, ok := parsePosition(p.String()); !ok || again != p {
			t.Errorf("%q reads as %+v, and that again as %+v, %v", token, p, again, ok)
		}
	})
}

func TestAMisspeltFieldOfARequestIsRefused(t *testing.T) {
	for _, c := range []strictJSON{{"json"}, {"json; charset=utf-8"}} {
		var req outriggerv1.ApplyRequest
		if err := c.Unmarshal([]byte(`{"dryRun":true}`), &req); err != nil || !req.DryRun {
			t.Errorf("%s: %v (%v), want a dry run", c.name, &req, err)
		}
		if err := c.Unmarshal([]byte(`{"dryrun":true}`), &req); err == nil || !strings.Contains(err.Error(), "dryrun") {
			t.Errorf("%s: %v, want that dryrun is unknown", c.name, err)
		}
	}
}
