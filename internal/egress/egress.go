// Package egress dials to where handlers live and nowhere else: it refuses link-local and
// cloud-metadata addresses, and whatever the operator denies. The address is checked when the socket
// is about to connect, after the name was resolved, so neither a way of spelling an address nor a name
// that changes between check and connect gets past it.
package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"
)

// ErrDenied is what every refusal is, by errors.Is. A DeniedError says which address it was.
var ErrDenied = errors.New("the egress rules don't allow the address")

// DeniedError is the refusal of one address. It is ErrDenied.
type DeniedError struct {
	Addr string // as it was about to be connected to: the resolved IP address, without the port
}

// Error names the address.
func (e *DeniedError) Error() string {
	return fmt.Sprintf("the egress rules don't allow %.64s", e.Addr)
}

// Is reports whether target is ErrDenied.
func (e *DeniedError) Is(target error) bool { return target == ErrDenied }

// connectTimeout bounds resolving a name and connecting to it, all its addresses together.
const connectTimeout = 10 * time.Second

// Policy is what a Dialer refuses beyond what it always refuses. The zero value is ready for use.
type Policy struct {
	// Deny lists networks that are refused as well, in any form that carries them (IPv4 addresses in
	// IPv6 ones too). Loopback and private networks are allowed unless they are listed here, since that
	// is where handlers usually live.
	Deny []netip.Prefix

	// Resolver looks names up; nil takes the system's.
	Resolver *net.Resolver
}

// Dialer dials TCP under a Policy. It is safe for concurrent use.
type Dialer struct {
	dialer net.Dialer
	deny   []netip.Prefix
}

// New returns a Dialer. An invalid prefix in p.Deny denies nothing.
func New(p Policy) *Dialer {
	d := &Dialer{deny: make([]netip.Prefix, 0, len(p.Deny))}
	for _, prefix := range p.Deny {
		if prefix.Addr().Is4In6() && prefix.Bits() >= 96 {
			// Addresses are compared in their IPv4 form, so the rule must be in it too.
			prefix = netip.PrefixFrom(prefix.Addr().Unmap(), prefix.Bits()-96)
		}
		d.deny = append(d.deny, prefix.Masked())
	}
	d.dialer = net.Dialer{
		Timeout:  connectTimeout,
		Resolver: p.Resolver,
		// Called for each socket with the address that it is about to connect to.
		ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
			return d.check(address)
		},
	}
	return d
}

// DialContext connects as net.Dialer does, within 10 seconds or what is left of ctx. Where a name has
// several addresses, the denied ones are passed over. It fails with an error that is ErrDenied where
// none is left, and always for networks other than TCP.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	switch network {
	case "tcp", "tcp4", "tcp6":
		return d.dialer.DialContext(ctx, network, address)
	}
	return nil, &DeniedError{Addr: network}
}

// check refuses an address "ip:port". What it can't read it refuses.
func (d *Dialer) check(address string) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return &DeniedError{Addr: address}
	}
	if d.denied(ap.Addr()) {
		return &DeniedError{Addr: ap.Addr().String()}
	}
	return nil
}

// denied reports whether the address, or an IPv4 address that it carries, is refused.
func (d *Dialer) denied(addr netip.Addr) bool {
	// A prefix contains no address that has a zone, so fe80::1%eth0 would pass.
	addr = addr.WithZone("").Unmap()
	contains := func(p netip.Prefix) bool { return p.Contains(addr) }
	if slices.ContainsFunc(always, contains) || slices.ContainsFunc(d.deny, contains) {
		return true
	}
	return addr.Is6() && slices.ContainsFunc(carried(addr), d.denied)
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
