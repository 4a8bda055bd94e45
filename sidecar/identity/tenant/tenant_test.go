package tenant

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/identity"
)

func tenantOf(name string, selectors ...*outriggerv1.TenantSelector) *outriggerv1.Tenant {
	return &outriggerv1.Tenant{Name: name, Selectors: selectors}
}

type selector = outriggerv1.TenantSelector

func TestACallerBelongsToTheTenantWhoseSelectorItMatches(t *testing.T) {
	off := tenantOf("off", &selector{Groups: []string{"off"}})
	off.Disabled = true
	x := NewIndex([]*outriggerv1.Tenant{
		tenantOf("acme", &selector{Issuer: "i", Groups: []string{"staff"}}, &selector{KeyLabels: map[string]string{"team": "sky"}}),
		tenantOf("beta", &selector{Issuer: "i", Groups: []string{"staff", "beta"}, Claims: map[string]string{"org.id": "7"}}),
		tenantOf("mesh", &selector{SpiffeId: "spiffe://acme/*"}),
		tenantOf("one", &selector{SpiffeId: "spiffe://beta/one"}),
		tenantOf("named"),
		off,
	})
	for _, row := range []struct {
		p     identity.Principal
		named string
		want  string
		err   error
	}{
		{identity.Principal{}, "", "", nil},
		{identity.Principal{Issuer: "i"}, "", "", nil},
		{identity.Principal{Groups: []string{"staff"}}, "", "", nil},
		{identity.Principal{Issuer: "i", Groups: []string{"more", "staff"}}, "", "acme", nil},
		{identity.Principal{Issuer: "j", Groups: []string{"staff"}}, "", "", nil},
		{identity.Principal{KeyLabels: map[string]string{"team": "sky", "a": "b"}}, "", "acme", nil},
		{identity.Principal{KeyLabels: map[string]string{"team": "earth"}}, "", "", nil},
		{identity.Principal{Issuer: "i", Groups: []string{"beta", "staff"}, ClaimText: map[string]string{"org.id": "7"}}, "", "", ErrAmbiguous},
		{identity.Principal{Issuer: "i", Groups: []string{"beta", "staff"}, ClaimText: map[string]string{"org.id": "8"}}, "", "acme", nil},
		{identity.Principal{SPIFFEID: "spiffe://acme/a/b"}, "", "mesh", nil},
		{identity.Principal{SPIFFEID: "spiffe://acme"}, "", "", nil},
		{identity.Principal{SPIFFEID: "spiffe://acmes/a"}, "", "", nil},
		{identity.Principal{SPIFFEID: "spiffe://beta/one"}, "", "one", nil},
		{identity.Principal{SPIFFEID: "spiffe://beta/one/two"}, "", "", nil},
		{identity.Principal{}, "named", "named", nil},
		{identity.Principal{}, "gone", "", ErrUnknown},
		{identity.Principal{}, "off", "", ErrDisabled},
		{identity.Principal{Groups: []string{"off"}}, "", "", ErrDisabled},
		{identity.Principal{Groups: []string{"off"}}, "named", "", ErrAmbiguous},
		{identity.Principal{Issuer: "i", Groups: []string{"staff"}}, "acme", "acme", nil},
	} {
		got, err := x.Of(&row.p, row.named)
		if got != row.want || !errors.Is(err, row.err) {
			t.Errorf("%+v named %q: %q, %v; want %q, %v", row.p, row.named, got, err, row.want, row.err)
		}
	}
}

func TestACallerOfTooManyGroupsIsRefusedRatherThanHalfSeen(t *testing.T) {
	var tenants []*outriggerv1.Tenant
	p := &identity.Principal{}
	for i := range maxAtoms + 1 {
		group := fmt.Sprint("g", i)
		tenants = append(tenants, tenantOf(fmt.Sprint("t", i), &selector{Issuer: "i", Groups: []string{group}}))
		p.Groups = append(p.Groups, group)
	}
	if got, err := NewIndex(tenants).Of(p, ""); !errors.Is(err, ErrTooMany) {
		t.Errorf("%q, %v; want %v", got, err, ErrTooMany)
	}
	p.Groups = p.Groups[:maxAtoms]
	if got, err := NewIndex(tenants).Of(p, ""); got != "" || err != nil {
		t.Errorf("%q, %v; want no tenant", got, err)
	}
}

// plainly is what Of finds, by trying every selector.
func plainly(tenants []*outriggerv1.Tenant, p *identity.Principal) (string, error) {
	found := map[string]bool{}
	for _, t := range tenants {
		for _, s := range t.GetSelectors() {
			if matches(s, p) {
				found[t.GetName()] = true
			}
		}
	}
	for name := range found {
		if len(found) > 1 {
			return "", ErrAmbiguous
		}
		return name, nil
	}
	return "", nil
}

func matches(s *selector, p *identity.Principal) bool {
	if s.Issuer != "" && s.Issuer != p.Issuer {
		return false
	}
	for _, g := range s.Groups {
		if !strings.Contains(" "+strings.Join(p.Groups, " ")+" ", " "+g+" ") {
			return false
		}
	}
	for path, value := range s.Claims {
		if got, ok := p.ClaimText[path]; !ok || got != value {
			return false
		}
	}
	for key, value := range s.KeyLabels {
		if got, ok := p.KeyLabels[key]; !ok || got != value {
			return false
		}
	}
	if prefix, below := strings.CutSuffix(s.SpiffeId, "*"); below {
		return strings.HasPrefix(p.SPIFFEID, prefix)
	}
	return s.SpiffeId == "" || s.SpiffeId == p.SPIFFEID
}

func TestTheIndexFindsWhatTryingEverySelectorFinds(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	word := func(kind string) string { return fmt.Sprint(kind, random.IntN(4)) }
	words := func(kind string) (out []string) {
		for range random.IntN(3) {
			out = append(out, word(kind))
		}
		return out
	}
	labels := func(kind string) map[string]string {
		m := map[string]string{}
		for range random.IntN(3) {
			m[word(kind)] = word("v")
		}
		return m
	}
	for range 200 {
		var tenants []*outriggerv1.Tenant
		for i := range 1 + random.IntN(20) {
			s := &selector{Groups: words("g"), Claims: labels("c"), KeyLabels: labels("l")}
			if random.IntN(2) == 0 {
				s.Issuer = word("i")
			}
			if random.IntN(4) == 0 {
				s.SpiffeId = []string{"spiffe://a/*", "spiffe://a/b", "spiffe://a/b/*"}[random.IntN(3)]
			}
			if s.Issuer == "" && s.SpiffeId == "" && len(s.Groups)+len(s.Claims)+len(s.KeyLabels) == 0 {
				s.Issuer = "i0"
			}
			tenants = append(tenants, tenantOf(fmt.Sprint("t", i), s))
		}
		x := NewIndex(tenants)
		for range 50 {
			p := &identity.Principal{
				Issuer: word("i"), Groups: append(words("g"), words("g")...), ClaimText: labels("c"), KeyLabels: labels("l"),
				SPIFFEID: []string{"", "spiffe://a/b", "spiffe://a/b/c", "spiffe://ab"}[random.IntN(4)],
			}
			want, wantErr := plainly(tenants, p)
			if got, err := x.Of(p, ""); got != want || err != wantErr {
				t.Fatalf("%+v: %q, %v; want %q, %v\n%v", p, got, err, want, wantErr, tenants)
			}
		}
	}
}

// shapes are ways to select 10,000 tenants, and a caller of one of them.
func shapes() map[string]func(i int) (*selector, *identity.Principal) {
	return map[string]func(i int) (*selector, *identity.Principal){
		"group": func(i int) (*selector, *identity.Principal) {
			g := fmt.Sprint("group-", i)
			return &selector{Groups: []string{g}}, &identity.Principal{Issuer: "https://idp.example", Groups: []string{"everyone", g, "staff"}}
		},
		"issuer and claim": func(i int) (*selector, *identity.Principal) {
			org := fmt.Sprint("org-", i)
			return &selector{Issuer: "https://idp.example", Claims: map[string]string{"org.id": org}},
				&identity.Principal{Issuer: "https://idp.example", ClaimText: map[string]string{"org.id": org, "sub": "jo"}}
		},
		"two that are common alone": func(i int) (*selector, *identity.Principal) {
			a, b := fmt.Sprint("a-", i/100), fmt.Sprint("b-", i%100)
			return &selector{Groups: []string{a}, Claims: map[string]string{"org": b}},
				&identity.Principal{Issuer: "https://idp.example", Groups: []string{a, "staff"}, ClaimText: map[string]string{"org": b}}
		},
		"spiffe": func(i int) (*selector, *identity.Principal) {
			return &selector{SpiffeId: fmt.Sprintf("spiffe://acme/%d/*", i)}, &identity.Principal{SPIFFEID: fmt.Sprintf("spiffe://acme/%d/sa/x", i)}
		},
	}
}

func TestOfDoesNotAllocate(t *testing.T) {
	for name, shape := range shapes() {
		x, p := indexOf(10_000, shape)
		if got := testing.AllocsPerRun(100, func() { _, _ = x.Of(p, "") }); got != 0 {
			t.Errorf("%s: %v allocations", name, got)
		}
	}
}

func indexOf(n int, shape func(i int) (*selector, *identity.Principal)) (*Index, *identity.Principal) {
	var tenants []*outriggerv1.Tenant
	for i := range n {
		s, _ := shape(i)
		tenants = append(tenants, tenantOf(fmt.Sprint("t", i), s))
	}
	_, p := shape(n / 2)
	return NewIndex(tenants), p
}

func BenchmarkOf(b *testing.B) {
	for name, shape := range shapes() {
		x, p := indexOf(10_000, shape)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if got, err := x.Of(p, ""); got != "t5000" || err != nil {
					b.Fatalf("%q, %v; want t5000", got, err)
				}
			}
		})
	}
}
