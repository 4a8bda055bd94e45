package fetch

import "net/netip"

// reserved are addresses that are global by their form and lead nowhere public all the same (RFC 6890 and its registries).
var reserved = parsed(
	"0.0.0.0/8",       // this network
	"100.64.0.0/10",   // shared by a carrier's customers
	"192.0.0.0/24",    // of protocols
	"192.0.2.0/24",    // for documentation
	"198.18.0.0/15",   // for benchmarks
	"198.51.100.0/24", // for documentation
	"203.0.113.0/24",  // for documentation
	"240.0.0.0/4",     // reserved, broadcast among them
	"64:ff9b:1::/48",  // translated locally
	"100::/64",        // discarded
	"2001::/23",       // of protocols, tunnels to IPv4 among them
	"2001:db8::/32",   // for documentation
	"2002::/16",       // tunnels to IPv4
	"3fff::/20",       // for documentation
	"5f00::/16",       // segments of routes
	"fec0::/10",       // site-local of old
)

// translated is where a gateway turns the last four bytes into an address of IPv4 (RFC 6052).
var translated = netip.MustParsePrefix("64:ff9b::/96")

func parsed(texts ...string) (all []netip.Prefix) {
	for _, t := range texts {
		all = append(all, netip.MustParsePrefix(t))
	}
	return all
}

func isLoopback(a netip.Addr) bool { return a.IsLoopback() }

// isUnicast reports whether an address is one host's at all.
func isUnicast(a netip.Addr) bool {
	return a.IsValid() && !a.IsUnspecified() && !a.IsMulticast() && !a.IsInterfaceLocalMulticast() &&
		a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// isPublic reports whether an address is one that anybody on the internet could ask.
func isPublic(a netip.Addr) bool {
	if translated.Contains(a) {
		b := a.As16()
		return isPublic(netip.AddrFrom4([4]byte(b[12:])))
	}
	if !a.IsGlobalUnicast() || a.IsPrivate() || a.Zone() != "" {
		return false
	}
	for _, p := range reserved {
		if p.Contains(a) {
			return false
		}
	}
	return true
}
