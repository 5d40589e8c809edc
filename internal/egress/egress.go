// Package egress dials to where handlers live and nowhere else: it refuses link-local and
// cloud-metadata addresses, and whatever the operator's rules refuse. The address is checked when the socket
// is about to connect, after the name was resolved, so neither a way of spelling an address nor a name
// that changes between check and connect gets past it.
package egress

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"
)

// ErrDenied is what every refusal is, by errors.Is. A DeniedError says which address it was.
var ErrDenied = errors.New("the egress rules don't allow the address")

// DeniedError is the refusal of one address or name. It is ErrDenied.
type DeniedError struct {
	Addr string // the resolved IP address as it was about to be connected to, or the host; without the port
	Why  string // which kind of rule it was
}

// Error names the address.
func (e *DeniedError) Error() string {
	return fmt.Sprintf("the egress rules don't allow %.64s: %s", e.Addr, e.Why)
}

// Is reports whether target is ErrDenied.
func (e *DeniedError) Is(target error) bool { return target == ErrDenied }

// Why an address or name is refused.
const (
	whyAlways   = "metadata services, link-local, multicast and reserved addresses are never allowed"
	whyDenied   = "it is on the deny list"
	whyUnlisted = "it is not on the allow list"
	whySpelling = "write an IPv4 address as four decimal numbers"
	whyForm     = "it is no address of a host"
)

// connectTimeout bounds resolving a name and connecting to it, all its addresses together.
const connectTimeout = 10 * time.Second

// Policy is what a Dialer refuses beyond what it always refuses, and which way it takes. The zero value is
// ready for use.
type Policy struct {
	// Allow, unless it is empty, is all that may be dialled: names that are on it, and addresses in its
	// networks. It opens nothing that Deny or the Dialer itself refuses.
	Allow Rules

	// Deny is refused as well. Its networks are, in any form that carries them (IPv4 addresses in IPv6 ones
	// too), whatever name led there. Loopback and private networks are allowed unless they are listed
	// here, since that is where handlers usually live.
	Deny Rules

	// Proxy is an http or https URL, with user and password if it wants them. The Dialer then resolves names
	// and checks addresses as without, and asks the proxy to CONNECT to the address that was checked. The proxy's
	// own address is not checked.
	Proxy *url.URL

	ProxyRoots *x509.CertPool // who may sign an https proxy's certificate; nil takes the system's
	Resolver   *net.Resolver  // looks names up; nil takes the system's
}

// Dialer dials TCP under a Policy. It is safe for concurrent use.
type Dialer struct {
	policy Policy
	dialer net.Dialer
}

// New returns a Dialer.
func New(p Policy) *Dialer {
	return &Dialer{policy: p, dialer: net.Dialer{Timeout: connectTimeout, Resolver: p.Resolver}}
}

// DialContext connects as net.Dialer does, within 10 seconds or what is left of ctx. Where a name has
// several addresses, the denied ones are passed over. It fails with an error that is ErrDenied where
// none is left, and always for networks other than TCP.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	switch network {
	case "tcp", "tcp4", "tcp6":
	default:
		return nil, &DeniedError{network, whyForm}
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, &DeniedError{address, whyForm}
	}
	named, err := d.checkHost(host)
	if err != nil {
		return nil, err
	}
	if d.policy.Proxy != nil {
		return d.dialProxy(ctx, network, host, port, named)
	}
	dialer := d.dialer
	// Called for each socket with the address that it is about to connect to.
	dialer.ControlContext = func(_ context.Context, _, address string, _ syscall.RawConn) error {
		ap, err := netip.ParseAddrPort(address)
		if err != nil {
			return &DeniedError{address, whyForm}
		}
		return d.checkAddr(ap.Addr(), named)
	}
	return dialer.DialContext(ctx, network, address)
}

// CheckHost returns an error, which is ErrDenied, if no DialContext to the host could ever be allowed: for an
// address that is refused, in whatever spelling, and for a name that the rules refuse whatever it resolves to.
func (d *Dialer) CheckHost(host string) error {
	named, err := d.checkHost(host)
	if err != nil {
		return err
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		return d.checkAddr(addr, named)
	}
	return nil
}

// checkHost refuses a host before it is resolved. named says that the allow list has it by its name, so
// that its addresses need not be there.
func (d *Dialer) checkHost(host string) (named bool, err error) {
	if _, err := netip.ParseAddr(host); err == nil {
		return false, nil
	}
	if host == "" {
		return false, &DeniedError{host, whyForm}
	}
	if endsInNumber(host) {
		return false, &DeniedError{host, whySpelling}
	}
	name := strings.TrimSuffix(strings.ToLower(host), ".")
	if d.policy.Deny.hasName(name) {
		return false, &DeniedError{host, whyDenied}
	}
	named = d.policy.Allow.hasName(name)
	if !named && len(d.policy.Allow.networks) == 0 && !d.policy.Allow.empty() {
		return false, &DeniedError{host, whyUnlisted}
	}
	return named, nil
}

// checkAddr refuses an address that is about to be connected to.
func (d *Dialer) checkAddr(addr netip.Addr, named bool) error {
	// A prefix contains no address that has a zone, so fe80::1%eth0 would pass.
	addr = addr.WithZone("").Unmap()
	if why := d.denied(addr); why != "" {
		return &DeniedError{addr.String(), why}
	}
	if !named && !d.policy.Allow.empty() && !d.policy.Allow.has(addr) {
		return &DeniedError{addr.String(), whyUnlisted}
	}
	return nil
}

// denied says why the address, or an IPv4 address that it carries, is refused; "" if it is not.
func (d *Dialer) denied(addr netip.Addr) string {
	switch {
	case slices.ContainsFunc(always, func(p netip.Prefix) bool { return p.Contains(addr) }):
		return whyAlways
	case d.policy.Deny.has(addr):
		return whyDenied
	case addr.Is6():
		for _, v4 := range carried(addr) {
			if why := d.denied(v4); why != "" {
				return why
			}
		}
	}
	return ""
}
