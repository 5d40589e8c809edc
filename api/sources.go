package api

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/inboxd/inboxd/inbox"
)

// ListSources implements the operation.
func (s *server) ListSources(ctx context.Context, _ ListSourcesRequestObject) (ListSourcesResponseObject, error) {
	sources, err := s.store.Sources(ctx)
	if err != nil {
		return nil, err
	}
	list := ListSources200JSONResponse{Items: []Source{}}
	for _, source := range sources {
		if within(ctx).Source(source.ID) {
			list.Items = append(list.Items, showSource(source))
		}
	}
	return list, nil
}

// CreateSource implements the operation.
func (s *server) CreateSource(ctx context.Context, request CreateSourceRequestObject) (CreateSourceResponseObject, error) {
	in := request.Body
	source := &inbox.Source{
		Name: in.Name, Provider: in.Provider, Variant: or(in.Variant, ""), Settings: or(in.Settings, json.RawMessage("{}")),
		Secrets: toSecrets(in.Secrets), BodyLimit: or(in.BodyLimit, 0), Enabled: or(in.Enabled, true),
	}
	if err := checkNewName(scope(ctx).Source, in.Name, scope(ctx).Sources); err != nil {
		return nil, err
	}
	if err := checkNewSecrets(ctx, in.Secrets); err != nil {
		return nil, err
	}
	if err := s.checkSource(source); err != nil {
		return nil, err
	}
	if err := s.store.CreateSource(ctx, actor(ctx), source); err != nil {
		return nil, orNameTaken(err, "source", in.Name)
	}
	s.reload(ctx)
	return CreateSource201JSONResponse(showSource(source)), nil
}

// GetSource implements the operation.
func (s *server) GetSource(ctx context.Context, request GetSourceRequestObject) (GetSourceResponseObject, error) {
	source, err := s.store.Source(ctx, request.Name)
	if err != nil {
		return nil, orNotFound(err, "source", request.Name)
	}
	return GetSource200JSONResponse(showSource(source)), nil
}

// ChangeSource implements the operation.
func (s *server) ChangeSource(ctx context.Context, request ChangeSourceRequestObject) (ChangeSourceResponseObject, error) {
	in := request.Body
	if err := checkNewSecrets(ctx, in.Secrets); err != nil {
		return nil, err
	}
	source, err := s.store.ChangeSource(ctx, actor(ctx), request.Name, func(source *inbox.Source) error {
		source.Provider = or(in.Provider, source.Provider)
		source.Variant = or(in.Variant, source.Variant)
		source.Settings = or(in.Settings, source.Settings)
		source.BodyLimit = or(in.BodyLimit, source.BodyLimit)
		source.Enabled = or(in.Enabled, source.Enabled)
		if in.Secrets != nil {
			source.Secrets = toSecrets(in.Secrets)
			for i := range source.SecretInfo {
				source.SecretInfo[i].NotAfter = time.Time{} // given again, it has no end
			}
		}
		return s.checkSource(source)
	})
	if err != nil {
		return nil, orNotFound(err, "source", request.Name)
	}
	s.reload(ctx)
	return ChangeSource200JSONResponse(showSource(source)), nil
}

// DeleteSource implements the operation.
func (s *server) DeleteSource(ctx context.Context, request DeleteSourceRequestObject) (DeleteSourceResponseObject, error) {
	if err := s.store.DeleteSource(ctx, actor(ctx), request.Name); err != nil {
		return nil, orNotFound(err, "source", request.Name)
	}
	s.reload(ctx)
	return DeleteSource204Response{}, nil
}

// checkNewSecrets refuses the form in which secrets are stored: taken as given, it would name a key and
// open to nothing.
func checkNewSecrets(ctx context.Context, texts []string) error {
	for i, text := range texts {
		if err := checkNewSecret(ctx, fmt.Sprintf("secrets[%d]", i), text); err != nil {
			return err
		}
	}
	return nil
}

func checkNewSecret(ctx context.Context, field, text string) error {
	if strings.HasPrefix(text, "sealed:") {
		return invalid(field, "must not begin with sealed:, which marks secrets in the database")
	}
	if strings.ContainsRune(text, 0) {
		return invalid(field, "must not have a NUL character")
	}
	return checkReference(ctx, inbox.Secret(text))
}

func (s *server) checkSource(source *inbox.Source) error {
	if err := s.checker.CheckSource(source); err != nil {
		return &apiError{kind: ProblemInvalid, detail: err.Error()}
	}
	return nil
}

func showSource(s *inbox.Source) Source {
	return Source{
		Name: s.Name, Provider: s.Provider, Variant: s.Variant, Settings: s.Settings, SecretCount: len(s.Secrets), SecretError: orNil(s.SecretFault),
		BodyLimit: s.BodyLimit, Enabled: s.Enabled, CreatedAt: s.CreatedAt.UTC(), UpdatedAt: s.UpdatedAt.UTC(),
	}
}

func toSecrets(texts []string) []inbox.Secret {
	secrets := make([]inbox.Secret, len(texts))
	for i, text := range texts {
		secrets[i] = inbox.Secret(text)
	}
	return secrets
}

// orNil leaves an empty text out of an answer.
func orNil(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// or returns what p points at, or the other value for a field that was left out.
func or[T any](p *T, other T) T {
	if p == nil {
		return other
	}
	return *p
}
