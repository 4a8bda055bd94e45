package jwt

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/identity"
)

func TestARevocationMatchesByAllThatItGives(t *testing.T) {
	noon := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	caller := func(change func(*identity.Principal)) *identity.Principal {
		p := &identity.Principal{ID: "https://a|jo", Issuer: "https://a", Subject: "jo", JTI: "7", IssuedAt: noon}
		change(p)
		return p
	}
	same := func(*identity.Principal) {}
	for name, test := range map[string]struct {
		revoked *outriggerv1.Revocation
		caller  *identity.Principal
		want    bool
	}{
		"jti":                             {&outriggerv1.Revocation{Jti: "7"}, caller(same), true},
		"another jti":                     {&outriggerv1.Revocation{Jti: "8"}, caller(same), false},
		"jti, no jti":                     {&outriggerv1.Revocation{Jti: "7"}, caller(func(p *identity.Principal) { p.JTI = "" }), false},
		"jti of an issuer":                {&outriggerv1.Revocation{Jti: "7", Issuer: "https://a"}, caller(same), true},
		"jti of another issuer":           {&outriggerv1.Revocation{Jti: "7", Issuer: "https://b"}, caller(same), false},
		"jti of a subject":                {&outriggerv1.Revocation{Jti: "7", Subject: "jo"}, caller(same), true},
		"jti of another subject":          {&outriggerv1.Revocation{Jti: "7", Subject: "al"}, caller(same), false},
		"subject":                         {&outriggerv1.Revocation{Subject: "jo"}, caller(same), true},
		"another subject":                 {&outriggerv1.Revocation{Subject: "al"}, caller(same), false},
		"subject of another issuer":       {&outriggerv1.Revocation{Subject: "jo", Issuer: "https://b"}, caller(same), false},
		"issued before":                   {&outriggerv1.Revocation{Subject: "jo", IssuedBefore: timestamppb.New(noon.Add(1))}, caller(same), true},
		"issued at that time":             {&outriggerv1.Revocation{Subject: "jo", IssuedBefore: timestamppb.New(noon)}, caller(same), false},
		"issued nobody knows when":        {&outriggerv1.Revocation{Subject: "jo", IssuedBefore: timestamppb.New(noon)}, caller(func(p *identity.Principal) { p.IssuedAt = time.Time{} }), true},
		"a key by name":                   {&outriggerv1.Revocation{Subject: "key:ci"}, &identity.Principal{ID: "key:ci", Key: "ci"}, true},
		"a certificate":                   {&outriggerv1.Revocation{Subject: "spiffe://a/b"}, &identity.Principal{ID: "spiffe://a/b", SPIFFEID: "spiffe://a/b"}, true},
		"a token that calls itself a key": {&outriggerv1.Revocation{Subject: "https://a|jo"}, caller(same), false},
	} {
		r := NewRevocations([]*outriggerv1.Revocation{{Jti: "other", Subject: "other"}, test.revoked})
		if got := r.Match(test.caller); got != test.want {
			t.Errorf("%s: %v, want %v (%v of %+v)", name, got, test.want, test.revoked, test.caller)
		}
	}
	if NewRevocations(nil).Match(caller(same)) {
		t.Error("no revocations revoke somebody")
	}
}

func TestRevocationsDoNotAllocate(t *testing.T) {
	var all []*outriggerv1.Revocation
	for range 10_000 {
		all = append(all, &outriggerv1.Revocation{Jti: "x"}, &outriggerv1.Revocation{Subject: "x"})
	}
	r, p := NewRevocations(all), &identity.Principal{ID: "https://a|jo", Subject: "jo", JTI: "7"}
	if n := testing.AllocsPerRun(100, func() { r.Match(p) }); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}
