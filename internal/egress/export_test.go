package egress

import "errors"

// Denies reports whether the dialer refuses to connect to the resolved address "ip:port".
func Denies(d *Dialer, address string) bool { return errors.Is(d.check(address), ErrDenied) }
