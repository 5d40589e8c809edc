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
	"ListSources":  {role: inbox.RoleRead},
	"GetSource":    {role: inbox.RoleRead},
	"CreateSource": {role: inbox.RoleAdmin},
	"ChangeSource": {role: inbox.RoleAdmin},
	"DeleteSource": {role: inbox.RoleAdmin},

	"ListSourceSecrets":  {role: inbox.RoleRead},
	"AddSourceSecret":    {role: inbox.RoleAdmin},
	"RotateSourceSecret": {role: inbox.RoleAdmin},
	"RetireSourceSecret": {role: inbox.RoleAdmin},

	"ListHandlers":  {role: inbox.RoleRead},
	"GetHandler":    {role: inbox.RoleRead},
	"CreateHandler": {role: inbox.RoleAdmin},
	"ChangeHandler": {role: inbox.RoleAdmin},
	"DeleteHandler": {role: inbox.RoleAdmin},
	"PauseHandler":  {role: inbox.RoleOperate},
	"ResumeHandler": {role: inbox.RoleOperate},
	"PingHandler":   {role: inbox.RoleOperate},

	"ListHandlerSecrets":  {role: inbox.RoleRead},
	"RotateHandlerSecret": {role: inbox.RoleAdmin},
	"RetireHandlerSecret": {role: inbox.RoleAdmin},

	"ListMessages":  {role: inbox.RoleRead},
	"GetMessage":    {role: inbox.RoleRead},
	"GetTimeline":   {role: inbox.RoleRead},
	"LookUp":        {role: inbox.RoleRead},
	"ReplayMessage": {role: inbox.RoleOperate},

	"ListDeliveries":  {role: inbox.RoleRead},
	"GetDelivery":     {role: inbox.RoleRead},
	"ListAttempts":    {role: inbox.RoleRead},
	"ListOutcomes":    {role: inbox.RoleRead},
	"RetryDelivery":   {role: inbox.RoleOperate},
	"DiscardDelivery": {role: inbox.RoleOperate},
	"FinishDelivery":  {role: inbox.RoleOperate},

	"ListJobs":  {role: inbox.RoleRead},
	"GetJob":    {role: inbox.RoleRead},
	"CreateJob": {role: inbox.RoleOperate},
	"CancelJob": {role: inbox.RoleOperate},

	"GetStats":  {role: inbox.RoleRead},
	"GetSystem": {role: inbox.RoleRead},

	"ListTokens":  {role: inbox.RoleAdmin},
	"CreateToken": {role: inbox.RoleAdmin},
	"RevokeToken": {role: inbox.RoleAdmin},
	"ListAudit":   {role: inbox.RoleAdmin},
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
		return next(ctx, w, r, request)
	}
}

func forbidden(detail string) error { return &apiError{kind: ProblemForbidden, detail: detail} }
