package processor

import (
	"time"

	"github.com/inboxd/inboxd/inbox"
)

// The bounds of a cursor.
const (
	// grace is how long a commit may take and still be seen by the next look from the floor: a row carries
	// the time its transaction began.
	grace        = 10 * time.Second
	floorEvery   = 500 * time.Millisecond
	fullPassEach = 30 * time.Second // what took longer than the grace, replays, a new primary's clock
)

// cursor says from where on a handler's deliveries are looked at. The index of ready deliveries keeps an
// entry of each that was claimed until VACUUM comes by; a claim that starts at its head walks through all of
// them. So claims start at the last one claimed while there is a backlog, and otherwise at a floor
// below which nothing was ready when somebody last looked.
//
// The zero cursor has looked at nothing yet.
type cursor struct {
	floor time.Time // nothing is ready before it; the database's clock; zero is −∞
	last  time.Time // due time of the last delivery claimed; zero while there is no backlog

	floorAt time.Time // when the floor was last looked from, Go's clock
	fullAt  time.Time // when everything was last looked at
	pass    pass      // the look under way
}

type pass int

const (
	passCursor pass = iota
	passFloor
	passFull
)

// next returns the bound of the next look; zero is −∞.
func (c *cursor) next(now time.Time) time.Time {
	switch {
	case c.fullAt.IsZero() || now.Sub(c.fullAt) >= fullPassEach:
		c.pass = passFull
		return time.Time{}
	case c.last.IsZero() || now.Sub(c.floorAt) >= floorEvery:
		c.pass = passFloor
		return c.floor
	}
	c.pass = passCursor
	return c.last
}

// claimed takes in what a look for at most free deliveries found, in the order of their due times, and
// reports whether there may be more. dbNow is the database's time of the look, at is Go's.
func (c *cursor) claimed(found []inbox.Claim, free int, dbNow, at time.Time) (more bool) {
	if c.pass != passCursor {
		c.floor = dbNow.Add(-grace)
		if len(found) > 0 && found[0].NextRetryTime.Before(c.floor) {
			c.floor = found[0].NextRetryTime
		}
		c.floorAt = at
		if c.pass == passFull {
			c.fullAt = at
		}
	}
	if len(found) < free {
		c.last = time.Time{}
		return false
	}
	c.last = found[len(found)-1].NextRetryTime
	return true
}
