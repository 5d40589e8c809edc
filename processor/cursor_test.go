package processor

import (
	"testing"
	"time"

	"github.com/inboxd/inboxd/inbox"
)

func claimsDue(times ...time.Time) []inbox.Claim {
	claims := make([]inbox.Claim, len(times))
	for i, due := range times {
		claims[i].NextRetryTime = due
	}
	return claims
}

func TestCursor(t *testing.T) {
	at := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC) // Go's clock
	db := at.Add(time.Hour)                             // the database's, which is another
	var c cursor

	if bound := c.next(at); !bound.IsZero() {
		t.Fatalf("the first look is from %v, want −∞", bound)
	}
	// A backlog from 20 minutes ago: full pages move the cursor.
	old := db.Add(-20 * time.Minute)
	if more := c.claimed(claimsDue(old, old.Add(time.Second)), 2, db, at); !more {
		t.Errorf("a full page, and there is no more?")
	}
	at, db = at.Add(time.Millisecond), db.Add(time.Millisecond)
	if bound := c.next(at); !bound.Equal(old.Add(time.Second)) {
		t.Errorf("next look from %v, want from the last one claimed", bound)
	}
	c.claimed(claimsDue(old.Add(2*time.Second), old.Add(3*time.Second)), 2, db, at)

	// After half a second the floor is looked from: an older one may have been released.
	at, db = at.Add(floorEvery), db.Add(floorEvery)
	if bound := c.next(at); !bound.Equal(old) {
		t.Errorf("next look from %v, want the floor: nothing older than %v was ready", bound, old)
	}
	// A short page ends the backlog, and the floor comes up to the grace before now.
	if more := c.claimed(claimsDue(old.Add(4*time.Second)), 2, db, at); more {
		t.Errorf("a short page, and there is more?")
	}
	at, db = at.Add(time.Millisecond), db.Add(time.Millisecond)
	if bound := c.next(at); !bound.Equal(old.Add(4 * time.Second)) {
		t.Errorf("next look from %v, want the first one that was ready", bound)
	}
	c.claimed(nil, 2, db, at)
	at = at.Add(time.Millisecond)
	if bound := c.next(at); !bound.Equal(db.Add(-grace)) {
		t.Errorf("next look from %v, want %v before the database's time", bound, grace)
	}
	c.claimed(nil, 2, db.Add(time.Millisecond), at)

	// Every half minute from the start.
	at = at.Add(fullPassEach)
	if bound := c.next(at); !bound.IsZero() {
		t.Errorf("next look from %v, want −∞ again", bound)
	}
}
