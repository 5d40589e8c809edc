package inbox

// TailEvent is one thing that happened: a message was stored, or a delivery failed, was parked or ended.
type TailEvent struct {
	Message  *MessageState  // as it is now; nil where a delivery is told
	Delivery *DeliveryState // as it was then
	After    string         // the position that what follows is after
}

// TailPage is what happened after a position, as far as one look tells it.
type TailPage struct {
	Events []TailEvent
	Next   string // the position that the next look continues after, also where there are no events
	More   bool   // there is more already
}
