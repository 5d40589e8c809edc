package egress_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/inboxd/inboxd/internal/egress"
)

func TestParseRules(t *testing.T) {
	t.Parallel()
	for _, entry := range []string{
		"", " ", "10.0.0.0/33", "10.0.0", "2852039166", "0xa9fea9fe", "a..b", "*", "*.", "a*.example", "books.*", "-a.example",
		"https://books.example", "books.example:443", "bücher.example", "fe80::1%eth0", "[::1]", "example.0x1f",
	} {
		if _, err := egress.ParseRules([]string{"10.0.0.0/8", entry}); err == nil || !strings.Contains(err.Error(), `"`+entry+`"`) {
			t.Errorf("ParseRules(%q) = %v, want an error that names it", entry, err)
		}
	}
	if _, err := egress.ParseRules([]string{" 10.0.0.0/8 ", "Books.Example.", "*.example", "::1", "private", "_a.xn--bcher-kva.example", "2001:db8::/32"}); err != nil {
		t.Error(err)
	}
}

// TestLists checks hosts before they are resolved, and addresses where the host is one.
func TestLists(t *testing.T) {
	t.Parallel()
	const always, denied, unlisted, spelling = "never allowed", "on the deny list", "not on the allow list", "four decimal numbers"
	for _, tc := range []struct {
		name, host  string
		allow, deny []string
		why         string // "" if the host may be dialled
	}{
		{"no lists", "books.example", nil, nil, ""},
		{"metadata", "169.254.169.254", nil, nil, always},
		{"metadata as decimal", "2852039166", nil, nil, spelling},
		{"metadata as octal", "0251.0376.0251.0376", nil, nil, spelling},
		{"metadata as hexadecimal", "0xA9.0xfe.0xa9.0xFE", nil, nil, spelling},
		{"metadata in two parts", "169.16689662", nil, nil, spelling},
		{"metadata with a dot", "169.254.169.254.", nil, nil, spelling},
		{"metadata, mapped", "::ffff:a9fe:a9fe", nil, nil, always},
		{"metadata, NAT64", "64:ff9b::a9fe:a9fe", nil, nil, always},
		{"metadata, local NAT64", "64:ff9b:1::a9fe:a9fe", nil, nil, always},
		{"metadata that is listed", "169.254.169.254", []string{"169.254.0.0/16"}, nil, always},
		{"private", "10.1.2.3", nil, nil, ""},
		{"private, denied", "10.1.2.3", nil, []string{"private"}, denied},
		{"loopback, denied", "127.0.0.1", nil, []string{"private"}, denied},
		{"loopback v6, denied", "::1", nil, []string{"private"}, denied},
		{"unique local, denied", "fd12:3456::1", nil, []string{"private"}, denied},
		{"private as NAT64, denied", "64:ff9b::10.1.2.3", nil, []string{"private"}, denied},
		{"private as 6to4, denied", "2002:a01:203::1", nil, []string{"private"}, denied},
		{"public, private denied", "192.0.2.7", nil, []string{"private"}, ""},
		{"deny wins", "10.1.2.3", []string{"10.0.0.0/8"}, []string{"10.1.0.0/16"}, denied},
		{"in an allowed network", "10.1.2.3", []string{"10.0.0.0/8"}, nil, ""},
		{"in no allowed network", "192.0.2.7", []string{"10.0.0.0/8"}, nil, unlisted},
		{"names only are allowed", "10.1.2.3", []string{"books.example"}, nil, unlisted},
		{"allowed, as another form carries it", "64:ff9b::10.1.2.3", []string{"10.0.0.0/8"}, nil, unlisted},
		{"allowed, mapped", "::ffff:10.1.2.3", []string{"10.0.0.0/8"}, nil, ""},
		{"an allowed name", "books.example", []string{"books.example"}, nil, ""},
		{"an allowed name, written otherwise", "BOOKS.example.", []string{"Books.example"}, nil, ""},
		{"another name", "films.example", []string{"books.example"}, nil, unlisted},
		{"a name that ends in an allowed one", "evilbooks.example", []string{"books.example"}, nil, unlisted},
		{"a name that may be in an allowed network", "films.example", []string{"books.example", "10.0.0.0/8"}, nil, ""},
		{"below an allowed name", "a.b.example", []string{"*.example"}, nil, ""},
		{"the name itself", "example", []string{"*.example"}, nil, unlisted},
		{"a denied name", "books.example.", nil, []string{"BOOKS.example"}, denied},
		{"below a denied name", "a.b.example", nil, []string{"*.example"}, denied},
		{"a denied name that is allowed", "a.example", []string{"a.example"}, []string{"*.example"}, denied},
		{"no host", "", nil, nil, "no address of a host"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			d := egress.New(egress.Policy{Allow: rules(t, tc.allow...), Deny: rules(t, tc.deny...)})
			err := d.CheckHost(tc.host)
			if (err != nil) != (tc.why != "") || err != nil && (!errors.Is(err, egress.ErrDenied) || !strings.Contains(err.Error(), tc.why)) {
				t.Errorf("CheckHost(%q) = %v, want %q", tc.host, err, tc.why)
			}
		})
	}
}
