package processor

import (
	"context"

	"github.com/inboxd/inboxd/inbox"
)

// pingMessage is the number of the message that a ping sends: messages are numbered from 1.
const pingMessage = 0

// pingBody is what a ping sends.
const pingBody = `{"type":"inboxd.ping"}`

// Ping makes one attempt of a message that is not stored, as Forward would: signed, over the same connections,
// under the same rules. The header inbox-test: 1 tells the handler. Result.ResponseBody has the first 1024 bytes
// of a success too.
func (f *Forwarder) Ping(ctx context.Context, h *inbox.Handler) inbox.Result {
	c := inbox.Claim{DeliveryID: inbox.DeliveryID{Message: pingMessage, Handler: h.ID}}
	return f.Forward(ctx, h, "", c, &inbox.Message{
		MessageType: "inboxd.ping", ContentType: "application/json", Body: []byte(pingBody),
	})
}
