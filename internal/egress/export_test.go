package egress

import (
	"errors"
	"net/netip"
)

// Denies reports whether the dialer refuses to connect to the resolved address.
func Denies(d *Dialer, address string) bool {
	return errors.Is(d.checkAddr(netip.MustParseAddr(address), false), ErrDenied)
}
