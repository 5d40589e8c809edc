package inbox

import "slices"

// Reach is a scope with numbers for names: the rows that somebody may see and act on. A message belongs to its source,
// a delivery to its source and its handler. A nil *Reach leaves nothing out.
type Reach struct {
	// Sorted. Nil leaves none out, an empty list all.
	Sources  []int64
	Handlers []int64
}

// Source reports whether the source of that number is within reach.
func (r *Reach) Source(id int64) bool { return r == nil || has(r.Sources, id) }

// Handler reports whether the handler of that number is within reach.
func (r *Reach) Handler(id int64) bool { return r == nil || has(r.Handlers, id) }

func has(ids []int64, id int64) bool {
	if ids == nil {
		return true
	}
	_, ok := slices.BinarySearch(ids, id)
	return ok
}

// Limit drops the deliveries that are out of reach. The status is then that of those that are left; of a message
// that only has others, DONE, since nothing is left to do about it.
func (m *MessageState) Limit(r *Reach) {
	all := len(m.Deliveries)
	m.Deliveries = slices.DeleteFunc(m.Deliveries, func(d DeliveryState) bool { return !r.Handler(d.DeliveryID.Handler) })
	if len(m.Deliveries) == all {
		return
	}
	m.Status, m.Discarded = Done, false
	if len(m.Deliveries) > 0 {
		statuses := make([]Status, len(m.Deliveries))
		for i, d := range m.Deliveries {
			statuses[i] = d.Status
		}
		m.Status, m.Discarded = MessageStatus(statuses...)
	}
}

// Limit drops what is about handlers that are out of reach; by name, those that the scope leaves out.
func (t *Timeline) Limit(r *Reach, s Scope) {
	t.Message.Limit(r)
	t.Events = slices.DeleteFunc(t.Events, func(e Event) bool { return e.Delivery.Handler != 0 && !r.Handler(e.Delivery.Handler) })
	t.NotRouted = slices.DeleteFunc(t.NotRouted, func(n NotRouted) bool { return !s.Handler(n.Handler) })
}
