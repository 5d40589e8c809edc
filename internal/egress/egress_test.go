package egress_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/inboxd/inboxd/internal/egress"
)

func TestDeniedAddresses(t *testing.T) {
	t.Parallel()
	d := egress.New(egress.Policy{Deny: rules(t,
		"10.1.0.0/16", "::ffff:10.2.0.0/112",
		"2001:db8:5::7/48", // host bits are ignored
	)})
	for _, tc := range []struct {
		name, addr string
		denied     bool
	}{
		{"metadata", "169.254.169.254", true},
		{"ECS credentials", "169.254.170.2", true},
		{"first link-local", "169.254.0.0", true},
		{"last link-local", "169.254.255.255", true},
		{"below link-local", "169.253.255.255", false},
		{"above link-local", "169.255.0.0", false},
		{"link-local v6", "fe80::1", true},
		{"link-local v6 with zone", "fe80::1%lo", true},
		{"end of link-local v6", "febf::1", true},
		{"AWS v6", "fd00:ec2::254", true},
		{"EKS pod identity", "fd00:ec2::23", true},
		{"Google v6", "fd20:ce::254", true},
		{"Scaleway v6", "fd00:42::42", true},
		{"Alibaba", "100.100.100.200", true},
		{"Azure", "168.63.129.16", true},
		{"Oracle", "192.0.0.192", true},
		{"unspecified", "0.0.0.0", true},
		{"this network", "0.1.2.3", true},
		{"unspecified v6", "::", true},
		{"multicast", "224.0.0.1", true},
		{"multicast v6", "ff02::1", true},
		{"reserved", "240.0.0.1", true},
		{"broadcast", "255.255.255.255", true},

		{"mapped", "::ffff:169.254.169.254", true},
		{"mapped, hexadecimal", "::ffff:a9fe:a9fe", true},
		{"mapped with zone", "::ffff:169.254.169.254%lo", true},
		{"mapped Azure", "::ffff:168.63.129.16", true},
		{"compatible", "::169.254.169.254", true},
		{"translated", "::ffff:0:169.254.169.254", true},
		{"NAT64", "64:ff9b::169.254.169.254", true},
		{"NAT64 of a denied network", "64:ff9b::10.1.2.3", true},
		{"NAT64 of another", "64:ff9b::10.9.2.3", false},
		{"local NAT64 /96", "64:ff9b:1::169.254.169.254", true},
		{"local NAT64 /48", "64:ff9b:1:a9fe:a9:fe00::", true},
		{"local NAT64 /56", "64:ff9b:1:a9:fe:a9fe::", true},
		{"local NAT64 /64", "64:ff9b:1:0:a9:fea9:fe00:0", true},
		{"local NAT64 of another", "64:ff9b:1::10.9.2.3", false},
		{"6to4", "2002:a9fe:a9fe::1", true},
		{"6to4 of another", "2002:a09:203::1", false},
		{"Teredo client", "2001:0:a09:203::5601:5601", true},
		{"Teredo server", "2001:0:a9fe:a9fe::f5f6:fdfc", true},
		{"ISATAP", "2001:db8::5efe:169.254.169.254", true},
		{"ISATAP, universal", "2001:db8::200:5efe:169.254.169.254", true},

		{"operator's", "10.1.255.255", true},
		{"outside the operator's", "10.0.255.255", false},
		{"operator's, written as mapped", "10.2.3.4", true},
		{"operator's, mapped", "::ffff:10.1.0.1", true},
		{"operator's v6", "2001:db8:5:1::1", true},

		{"loopback", "127.0.0.1", false},
		{"loopback v6", "::1", false},
		{"mapped loopback", "::ffff:127.0.0.1", false},
		{"private", "192.168.1.1", false},
		{"unique local", "fd12:3456::1", false},
		{"public", "192.0.2.7", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if got := egress.Denies(d, tc.addr); got != tc.denied {
				t.Errorf("denied %s = %v, want %v", tc.addr, got, tc.denied)
			}
		})
	}
	for _, address := range []string{"", ":80", "/run/docker.sock", "169.254.169.254", "[::1"} {
		if _, err := d.DialContext(t.Context(), "tcp", address); !errors.Is(err, egress.ErrDenied) {
			t.Errorf("what can't be read is allowed: %q, %v", address, err)
		}
	}
}

// rules parses entries that are right.
func rules(t *testing.T, entries ...string) egress.Rules {
	t.Helper()
	parsed, err := egress.ParseRules(entries)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// TestDial connects for real: what is allowed is reached, what is denied is not.
func TestDial(t *testing.T) {
	t.Parallel()
	conn, err := egress.New(egress.Policy{}).DialContext(t.Context(), "tcp", listen(t).Addr().String())
	if err != nil {
		t.Fatalf("loopback, which is allowed by default: %v", err)
	}
	_ = conn.Close()

	ln := listen(t)
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	d := egress.New(egress.Policy{Deny: rules(t, "127.0.0.0/8")})
	for _, host := range []string{"127.0.0.1", "127.9.9.9", "::ffff:127.0.0.1", "::ffff:7f00:1", "0.0.0.0", "::"} {
		_, err := d.DialContext(t.Context(), "tcp", net.JoinHostPort(host, port))
		if !errors.Is(err, egress.ErrDenied) {
			t.Errorf("DialContext %s = %v, want ErrDenied", host, err)
		}
	}
	for _, network := range []string{"unix", "udp", "ip"} {
		if _, err := d.DialContext(t.Context(), network, "127.0.0.1:80"); !errors.Is(err, egress.ErrDenied) {
			t.Errorf("DialContext %s = %v, want ErrDenied", network, err)
		}
	}
	if n := ln.accepted.Load(); n != 0 {
		t.Errorf("%d connections got through", n)
	}
}

// TestSpellings tries the ways of writing an IPv4 address that inet_aton knows. The system's resolver
// may understand them (glibc does) or not (Go's own): either way nothing is reached.
func TestSpellings(t *testing.T) { // [F6]
	t.Parallel()
	ln := listen(t)
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	deny := rules(t, "127.0.0.0/8", "::1")

	spellings := []string{
		// 169.254.169.254
		"2852039166", "0xa9fea9fe", "0xA9FEA9FE", "025177524776", "0251.0376.0251.0376", "0xa9.0xfe.0xa9.0xfe",
		"169.254.43518", "169.16689662", "0xa9.254.0251.254", "169.254.169.254.", "⑯⑨.②⑤④.①⑥⑨.②⑤④", "169。254。169。254",
		// 127.0.0.1, which is denied here and has a listener
		"2130706433", "0x7f000001", "017700000001", "0177.0.0.1", "0x7f.1", "127.1", "127.0.1", "127.0.0.1.", "0",
		"localhost", "localhost.",
	}
	resolvers := map[string]*net.Resolver{
		"system":    nil,
		"unknown":   fakeDNS(func() []netip.Addr { return nil }),
		"metadata":  fakeDNS(func() []netip.Addr { return []netip.Addr{netip.MustParseAddr("169.254.169.254")} }),
		"metadata6": fakeDNS(func() []netip.Addr { return []netip.Addr{netip.MustParseAddr("fd00:ec2::254")} }),
		"loopback":  fakeDNS(func() []netip.Addr { return []netip.Addr{netip.MustParseAddr("127.0.0.1")} }),
	}
	for name, resolver := range resolvers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := egress.New(egress.Policy{Deny: deny, Resolver: resolver})
			for _, host := range spellings {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, port))
				cancel()
				if err == nil {
					_ = conn.Close()
					t.Errorf("%s was reached at %s", host, conn.RemoteAddr())
					continue
				}
				_, dns := errors.AsType[*net.DNSError](err)
				if !errors.Is(err, egress.ErrDenied) && !dns {
					t.Errorf("%s: %v, want a refusal or an unknown name", host, err)
				}
			}
		})
	}
	t.Cleanup(func() {
		if n := ln.accepted.Load(); n != 0 {
			t.Errorf("%d connections got through", n)
		}
	})
}

// TestRebinding has a name that is harmless when first looked up and denied from then on.
func TestRebinding(t *testing.T) { // [F6]
	t.Parallel()
	ln := listen(t)
	_, port, _ := net.SplitHostPort(ln.Addr().String())

	var turned atomic.Bool
	d := egress.New(egress.Policy{Resolver: fakeDNS(func() []netip.Addr {
		if turned.Load() {
			return []netip.Addr{netip.MustParseAddr("169.254.169.254")}
		}
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	})})
	conn, err := d.DialContext(t.Context(), "tcp", "rebind.test:"+port)
	if err != nil {
		t.Fatalf("before: %v", err)
	}
	_ = conn.Close()
	turned.Store(true)
	if _, err := d.DialContext(t.Context(), "tcp", "rebind.test:"+port); !errors.Is(err, egress.ErrDenied) {
		t.Errorf("after = %v, want ErrDenied", err)
	}
	if _, err := d.DialContext(t.Context(), "tcp", "rebind.test:80"); err == nil || !strings.Contains(err.Error(), "169.254.169.254") {
		t.Errorf("error = %v, want one that names the address", err)
	}
}

// TestSeveralAddresses passes over the denied address of a name and connects to its other one.
func TestSeveralAddresses(t *testing.T) {
	t.Parallel()
	ln := listen(t)
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	d := egress.New(egress.Policy{Resolver: fakeDNS(func() []netip.Addr {
		return []netip.Addr{netip.MustParseAddr("169.254.169.254"), netip.MustParseAddr("127.0.0.1")}
	})})
	conn, err := d.DialContext(t.Context(), "tcp", "both.test:"+port)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got := conn.RemoteAddr().String(); got != ln.Addr().String() {
		t.Errorf("connected to %s, want %s", got, ln.Addr())
	}
}

// listener counts the connections that reach it.
type listener struct {
	net.Listener
	accepted atomic.Int64
}

func listen(t *testing.T) *listener {
	t.Helper()
	inner, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln := &listener{Listener: inner}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			ln.accepted.Add(1)
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = ln.Close()
		<-done
	})
	return ln
}

// fakeDNS resolves every name to the addresses that answer returns; to none at all if it returns none.
func fakeDNS(answer func() []netip.Addr) *net.Resolver {
	return &net.Resolver{
		PreferGo: true,
		Dial: func(context.Context, string, string) (net.Conn, error) {
			client, server := net.Pipe()
			go func() {
				defer server.Close()
				for serveDNS(server, answer()) == nil {
				}
			}()
			return client, nil
		},
	}
}

// serveDNS answers one question as DNS over TCP does (RFC 1035 section 4.2.2): each message has its
// length before it.
func serveDNS(conn net.Conn, addrs []netip.Addr) error {
	var length [2]byte
	if _, err := io.ReadFull(conn, length[:]); err != nil {
		return err
	}
	query := make([]byte, binary.BigEndian.Uint16(length[:]))
	if _, err := io.ReadFull(conn, query); err != nil {
		return err
	}
	end := 12
	for query[end] != 0 {
		end += int(query[end]) + 1
	}
	end++
	kind := binary.BigEndian.Uint16(query[end:])
	end += 4

	reply := append([]byte(nil), query[:end]...)
	var count uint16
	for _, addr := range addrs {
		if want := uint16(1); addr.Is4() && kind != want {
			continue
		}
		if want := uint16(28); addr.Is6() && kind != want {
			continue
		}
		count++
		data := addr.AsSlice()
		reply = append(reply, 0xc0, 12)                    // the name of the question
		reply = binary.BigEndian.AppendUint16(reply, kind) // type
		reply = append(reply, 0, 1, 0, 0, 0, 0)            // class IN, time to live 0
		reply = append(reply, 0, byte(len(data)))          // length
		reply = append(reply, data...)
	}
	code := byte(0)
	if len(addrs) == 0 {
		code = 3 // no such name
	}
	reply[2], reply[3] = 0x81, 0x80|code
	binary.BigEndian.PutUint16(reply[6:], count)
	binary.BigEndian.PutUint16(reply[8:], 0)
	binary.BigEndian.PutUint16(reply[10:], 0)

	_, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...))
	return err
}
