package egress

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// Rules is a list of networks and host names. The zero value holds none.
type Rules struct {
	networks []netip.Prefix
	names    []string // in lower case; "*." begins one that stands for all names below it
}

// Private is the word that stands for loopback, the private networks and what else is not on the internet.
const Private = "private"

var private = []netip.Prefix{
	netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128"), // loopback
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"), // RFC 1918
	netip.MustParsePrefix("100.64.0.0/10"), // shared address space, RFC 6598
	netip.MustParsePrefix("192.0.0.0/24"),  // protocol assignments, RFC 6890
	netip.MustParsePrefix("198.18.0.0/15"), // benchmarks, RFC 2544
	netip.MustParsePrefix("fc00::/7"),      // unique local, RFC 4193
	netip.MustParsePrefix("fec0::/10"),     // site-local, RFC 3879
}

var namePattern = regexp.MustCompile(`^(\*\.)?[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*$`)

// ParseRules reads entries, each a network (10.0.0.0/8), an address, a host name, the names below one (*.example.com,
// which is not example.com itself), or the word private. A name is compared with the one that is dialled,
// whatever it resolves to; one beyond ASCII is written as it is in DNS (xn--…).
func ParseRules(entries []string) (Rules, error) {
	var rules Rules
	for _, entry := range entries {
		text := strings.ToLower(strings.TrimSpace(entry))
		if text == Private {
			rules.networks = append(rules.networks, private...)
			continue
		}
		if addr, err := netip.ParseAddr(text); err == nil && addr.Zone() == "" {
			rules.networks = append(rules.networks, netip.PrefixFrom(addr.Unmap(), addr.Unmap().BitLen()))
			continue
		}
		if network, err := netip.ParsePrefix(text); err == nil {
			if network.Addr().Is4In6() && network.Bits() >= 96 {
				// Addresses are compared in their IPv4 form, so the rule must be in it too.
				network = netip.PrefixFrom(network.Addr().Unmap(), network.Bits()-96)
			}
			rules.networks = append(rules.networks, network.Masked())
			continue
		}
		name := strings.TrimSuffix(text, ".")
		if !namePattern.MatchString(name) || endsInNumber(name) {
			return Rules{}, fmt.Errorf("%q is neither a network (10.0.0.0/8), an address, a host name (books.example, *.example) nor the word %s", entry, Private)
		}
		rules.names = append(rules.names, name)
	}
	return rules, nil
}

func (r Rules) empty() bool { return len(r.networks) == 0 && len(r.names) == 0 }

// has reports whether a network of the rules contains the address, which is in its IPv4 form if it has one.
func (r Rules) has(addr netip.Addr) bool {
	return slices.ContainsFunc(r.networks, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// hasName reports whether the name, in lower case and without a dot at its end, is among the rules.
func (r Rules) hasName(name string) bool {
	return slices.ContainsFunc(r.names, func(rule string) bool {
		if below, ok := strings.CutPrefix(rule, "*"); ok {
			return strings.HasSuffix(name, below) && len(name) > len(below)
		}
		return name == rule
	})
}

// endsInNumber reports whether the host's last label is a number, decimal, octal or hexadecimal. Such a host is
// no name: it is an address in one of the spellings of inet_aton, which some resolvers understand and others look up
// (https://url.spec.whatwg.org/#ends-in-a-number-checker).
func endsInNumber(host string) bool {
	host = strings.TrimSuffix(host, ".")
	last := host[strings.LastIndexByte(host, '.')+1:]
	if hex, ok := strings.CutPrefix(strings.ToLower(last), "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return last != "" && strings.Trim(last, "0123456789") == ""
}

// always is what no policy allows.
var always = []netip.Prefix{
	// "This network": Linux connects 0.0.0.0 and :: to the host itself, whatever loopback rules say.
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("::/128"),

	// Link-local (RFC 3927, RFC 4291). The metadata services of AWS, Azure, Google, Oracle, OpenStack,
	// DigitalOcean and others are 169.254.169.254, those of ECS tasks, Tencent and Scaleway its neighbours.
	netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("fe80::/10"),

	// Multicast, reserved and broadcast (RFC 5771, RFC 1112, RFC 4291).
	netip.MustParsePrefix("224.0.0.0/4"),
	netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("ff00::/8"),

	// Metadata and host services that are not link-local.
	netip.MustParsePrefix("100.100.100.200/32"), // Alibaba Cloud
	netip.MustParsePrefix("168.63.129.16/32"),   // Azure's wire server
	netip.MustParsePrefix("192.0.0.192/32"),     // Oracle Cloud, formerly
	netip.MustParsePrefix("fd00:ec2::/32"),      // AWS: metadata is ::254, EKS credentials ::23
	netip.MustParsePrefix("fd20:ce::254/128"),   // Google Cloud
	netip.MustParsePrefix("fd00:42::42/128"),    // Scaleway
}

// The forms in which an IPv6 address carries an IPv4 one, and a router on the way may unpack it.
var (
	compatible    = netip.MustParsePrefix("::/96")           // IPv4-compatible, RFC 4291 section 2.5.5.1
	translated    = netip.MustParsePrefix("::ffff:0:0:0/96") // IPv4-translated, RFC 2765
	nat64         = netip.MustParsePrefix("64:ff9b::/96")    // RFC 6052
	nat64Local    = netip.MustParsePrefix("64:ff9b:1::/48")  // RFC 8215
	sixToFour     = netip.MustParsePrefix("2002::/16")       // RFC 3056
	teredo        = netip.MustParsePrefix("2001::/32")       // RFC 4380
	isatapIfaceID = [3]byte{0x00, 0x5e, 0xfe}                // RFC 5214, after the byte with the universal bit
)

// carried returns the IPv4 addresses that an IPv6 address may lead to.
func carried(addr netip.Addr) []netip.Addr {
	b := addr.As16()
	at := func(i int) netip.Addr { return netip.AddrFrom4([4]byte(b[i : i+4])) }
	var list []netip.Addr
	switch {
	case addr == netip.IPv6Loopback():
		// Within ::/96, and yet not 0.0.0.1.
		return nil
	case compatible.Contains(addr), translated.Contains(addr), nat64.Contains(addr):
		list = append(list, at(12))
	case nat64Local.Contains(addr):
		// The network may use any prefix length of RFC 6052 section 2.2 from /48 on, which all leave out
		// byte 8. What reads as "this network" is another form's padding.
		for _, v4 := range []netip.Addr{
			netip.AddrFrom4([4]byte{b[6], b[7], b[9], b[10]}),
			netip.AddrFrom4([4]byte{b[7], b[9], b[10], b[11]}),
			at(9), at(12),
		} {
			if v4.As4()[0] != 0 {
				list = append(list, v4)
			}
		}
	case sixToFour.Contains(addr):
		list = append(list, at(2))
	case teredo.Contains(addr):
		client := at(12).As4()
		for i := range client {
			client[i] ^= 0xff // RFC 4380 section 4: the client's address is obfuscated
		}
		list = append(list, at(4), netip.AddrFrom4(client))
	}
	if b[8]&^0x02 == 0 && [3]byte(b[9:12]) == isatapIfaceID {
		list = append(list, at(12))
	}
	return list
}
