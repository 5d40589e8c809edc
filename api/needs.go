package api

import (
	"context"
	"fmt"
	"net/http"

	"github.com/inboxd/inboxd/inbox"
)

// need is what an operation asks of a token.
type need struct {
	role inbox.Role
	// scoped: it keeps to what the token is for. Others refuse a token that isn't for everything.
	scoped bool
}

// needs has that of each operation; openapi.yaml says the same as x-role and x-scoped. An operation that
// isn't here is refused to everybody.
var needs = map[string]need{
	"ListSources":  {role: inbox.RoleRead, scoped: true},
	"GetSource":    {role: inbox.RoleRead, scoped: true},
	"CreateSource": {role: inbox.RoleAdmin, scoped: true},
	"ChangeSource": {role: inbox.RoleAdmin, scoped: true},
	"DeleteSource": {role: inbox.RoleAdmin, scoped: true},

	"ListSourceSecrets":  {role: inbox.RoleRead, scoped: true},
	"AddSourceSecret":    {role: inbox.RoleAdmin, scoped: true},
	"RotateSourceSecret": {role: inbox.RoleAdmin, scoped: true},
	"RetireSourceSecret": {role: inbox.RoleAdmin, scoped: true},

	"ListHandlers":  {role: inbox.RoleRead, scoped: true},
	"GetHandler":    {role: inbox.RoleRead, scoped: true},
	"CreateHandler": {role: inbox.RoleAdmin, scoped: true},
	"ChangeHandler": {role: inbox.RoleAdmin, scoped: true},
	"DeleteHandler": {role: inbox.RoleAdmin, scoped: true},
	"PauseHandler":  {role: inbox.RoleOperate, scoped: true},
	"ResumeHandler": {role: inbox.RoleOperate, scoped: true},
	"PingHandler":   {role: inbox.RoleOperate, scoped: true},

	"ListHandlerSecrets":  {role: inbox.RoleRead, scoped: true},
	"RotateHandlerSecret": {role: inbox.RoleAdmin, scoped: true},
	"RetireHandlerSecret": {role: inbox.RoleAdmin, scoped: true},

	"ListMessages":  {role: inbox.RoleRead, scoped: true},
	"GetMessage":    {role: inbox.RoleRead, scoped: true},
	"GetTimeline":   {role: inbox.RoleRead, scoped: true},
	"LookUp":        {role: inbox.RoleRead, scoped: true},
	"ReplayMessage": {role: inbox.RoleOperate, scoped: true},

	"ListDeliveries":  {role: inbox.RoleRead, scoped: true},
	"GetDelivery":     {role: inbox.RoleRead, scoped: true},
	"ListAttempts":    {role: inbox.RoleRead, scoped: true},
	"ListOutcomes":    {role: inbox.RoleRead, scoped: true},
	"RetryDelivery":   {role: inbox.RoleOperate, scoped: true},
	"DiscardDelivery": {role: inbox.RoleOperate, scoped: true},
	"FinishDelivery":  {role: inbox.RoleOperate, scoped: true},

	"ListJobs":  {role: inbox.RoleRead, scoped: true},
	"GetJob":    {role: inbox.RoleRead, scoped: true},
	"CreateJob": {role: inbox.RoleOperate, scoped: true},
	"CancelJob": {role: inbox.RoleOperate, scoped: true},

	"Tail":      {role: inbox.RoleRead, scoped: true},
	"GetStats":  {role: inbox.RoleRead, scoped: true},
	"GetSystem": {role: inbox.RoleRead},

	"ListTokens":  {role: inbox.RoleAdmin},
	"CreateToken": {role: inbox.RoleAdmin},
	"RevokeToken": {role: inbox.RoleAdmin},
	"ListAudit":   {role: inbox.RoleAdmin, scoped: true},
}

// authorize refuses what the token of a request may not do.
func (s *server) authorize(next StrictHandlerFunc, operation string) StrictHandlerFunc {
	needed, known := needs[operation]
	return func(ctx context.Context, w http.ResponseWriter, r *http.Request, request any) (any, error) {
		token, ok := ctx.Value(tokenKey{}).(*inbox.OperatorToken)
		switch {
		case !ok || !known:
			return nil, forbidden(operation + " has no role, so nobody may do it.")
		case !token.Role.Includes(needed.role):
			return nil, forbidden(fmt.Sprintf("%s needs a token of the role %s; this one has the role %s.", operation, needed.role, token.Role))
		case !needed.scoped && !token.Scope.Everything():
			return nil, forbidden(operation + " needs a token that is for all sources and handlers; this one is for some.")
		}
		ctx, err := s.enter(ctx, r, request)
		if err != nil {
			return nil, err
		}
		return next(ctx, w, r, request)
	}
}

func forbidden(detail string) error { return &apiError{kind: ProblemForbidden, detail: detail} }
