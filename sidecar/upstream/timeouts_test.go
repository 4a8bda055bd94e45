package upstream

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

func TestATimeoutThatIsNotConfiguredTakesItsDefault(t *testing.T) {
	defaults := Timeouts{Connect: 5 * time.Second, Handshake: 10 * time.Second, Call: 15 * time.Minute}
	configured := defaults
	configured.Call = time.Second
	for _, tt := range []struct {
		name string
		spec *outriggerv1.Timeouts
		want Timeouts
	}{
		{"no message", nil, defaults},
		{"zero", &outriggerv1.Timeouts{Connect: new(durationpb.Duration)}, defaults},
		{"one of three", &outriggerv1.Timeouts{Call: durationpb.New(time.Second)}, configured},
	} {
		if got := TimeoutsOf(tt.spec); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}
