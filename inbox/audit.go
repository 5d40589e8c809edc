package inbox

import (
	"encoding/json"
	"time"
)

// Actor is who changes something, and why. Every change of a source, handler, token or delivery takes one,
// and the audit keeps it.
type Actor struct {
	Name    string // of the token, or of the program that acted without one
	TokenID int64  // 0 for one that came without a token
	Reason  string // why, in the operator's words; may be empty
	Note    string // what else the next reader should know; may be empty
	Within  *Reach // what it may act on
}

// AuditEntry is one change that an actor made. It was written in the transaction of the change.
type AuditEntry struct {
	ID     int64
	At     time.Time
	Actor  Actor
	Action Action
	// Object is the name of a source, handler or token, or the id of a delivery or job.
	Object string
	// SourceID, HandlerID and Message say what the change belongs to; 0 where it belongs to none.
	SourceID  int64
	HandlerID int64
	Message   int64
	Job       int64 // the job that made the change, or that was changed
	// Before and After are JSON objects, with secrets masked; nil where there was or is nothing.
	Before json.RawMessage
	After  json.RawMessage
}

// Action is what an actor did.
type Action string

// The actions.
const (
	SourceCreate        Action = "source.create"
	SourceChange        Action = "source.change"
	SourceDelete        Action = "source.delete"
	SourceSecretAdd     Action = "source.secret.add"
	SourceSecretRotate  Action = "source.secret.rotate"
	SourceSecretRetire  Action = "source.secret.retire"
	HandlerCreate       Action = "handler.create"
	HandlerChange       Action = "handler.change"
	HandlerDelete       Action = "handler.delete"
	HandlerSecretRotate Action = "handler.secret.rotate"
	HandlerSecretRetire Action = "handler.secret.retire"
	TokenCreate         Action = "token.create"
	TokenRevoke         Action = "token.revoke"
	SecretsRekey        Action = "secrets.rekey"
	DeliveryRetry       Action = "delivery.retry"
	DeliveryDone        Action = "delivery.done"
	DeliveryDiscard     Action = "delivery.discard"
	DeliveryReplay      Action = "delivery.replay"
	JobCreate           Action = "job.create"
	JobCancel           Action = "job.cancel"
)

// AuditFilter says which entries a list has; a zero field takes all.
type AuditFilter struct {
	Actor   string // its name, exactly
	Action  Action
	Object  string
	Message int64
	From    time.Time // at this time or later
	To      time.Time // before it
	// Within leaves out what belongs to no source and no handler, such as tokens, as well.
	Within *Reach
}

// AuditPage is a part of the audit, the latest entry first. Next is the id to continue after, 0 at the end.
type AuditPage struct {
	Items []AuditEntry
	Next  int64
}
