package api

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/inboxd/inboxd/inbox"
)

const (
	// maxSecrets is how many secrets a source or handler may have; openapi.yaml says the same.
	maxSecrets = 20
	// defaultOverlap is how long a secret still holds after it was rotated out.
	defaultOverlap = "24h"
)

// ListSourceSecrets implements the operation.
func (s *server) ListSourceSecrets(ctx context.Context, request ListSourceSecretsRequestObject) (ListSourceSecretsResponseObject, error) {
	source, err := s.store.Source(ctx, request.Name)
	if err != nil {
		return nil, orNotFound(err, "source", request.Name)
	}
	return ListSourceSecrets200JSONResponse{Items: showSecrets(source.SecretInfo)}, nil
}

// AddSourceSecret implements the operation.
func (s *server) AddSourceSecret(ctx context.Context, request AddSourceSecretRequestObject) (AddSourceSecretResponseObject, error) {
	in := request.Body
	if err := checkNewSecret(ctx, "secret", *in.Secret); err != nil {
		return nil, err
	}
	secret := inbox.Secret(*in.Secret)
	by := because(actor(ctx), &Reason{Reason: in.Reason, Note: in.Note})
	source, err := s.changeSourceSecrets(ctx, by, inbox.SourceSecretAdd, request.Name, func(source *inbox.Source, _ time.Time) error {
		if at := slices.Index(source.Secrets, secret); at >= 0 {
			return conflict("The source has this secret already: %s.", source.SecretInfo[at].ID)
		}
		source.Secrets = append(source.Secrets, secret)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return AddSourceSecret201JSONResponse(showSecret(source.SecretInfo[len(source.SecretInfo)-1])), nil
}

// RotateSourceSecret implements the operation.
func (s *server) RotateSourceSecret(ctx context.Context, request RotateSourceSecretRequestObject) (RotateSourceSecretResponseObject, error) {
	in := request.Body
	if err := checkNewSecret(ctx, "secret", *in.Secret); err != nil {
		return nil, err
	}
	overlap := duration(or(in.Overlap, defaultOverlap))
	by := because(actor(ctx), &Reason{Reason: in.Reason, Note: in.Note})
	source, err := s.changeSourceSecrets(ctx, by, inbox.SourceSecretRotate, request.Name, func(source *inbox.Source, now time.Time) error {
		source.Secrets, source.SecretInfo = inbox.RotateSecrets(source.Secrets, source.SecretInfo, inbox.Secret(*in.Secret), now, overlap)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return RotateSourceSecret200JSONResponse{Items: showSecrets(source.SecretInfo)}, nil
}

// RetireSourceSecret implements the operation.
func (s *server) RetireSourceSecret(ctx context.Context, request RetireSourceSecretRequestObject) (RetireSourceSecretResponseObject, error) {
	_, err := s.changeSourceSecrets(ctx, actor(ctx), inbox.SourceSecretRetire, request.Name, func(source *inbox.Source, _ time.Time) (err error) {
		source.Secrets, err = retire(source.Secrets, source.SecretInfo, request.Secret)
		return err
	})
	if err != nil {
		return nil, err
	}
	return RetireSourceSecret204Response{}, nil
}

// changeSourceSecrets makes a change of a source's secrets, if requests can be verified with what it leaves.
func (s *server) changeSourceSecrets(
	ctx context.Context, by inbox.Actor, action inbox.Action, name string, change func(*inbox.Source, time.Time) error,
) (*inbox.Source, error) {
	source, err := s.store.ChangeSourceSecrets(ctx, by, action, name, func(source *inbox.Source, now time.Time) error {
		if err := change(source, now); err != nil {
			return err
		}
		if err := checkSecretCount(source.Secrets); err != nil {
			return err
		}
		return s.checkSource(source)
	})
	if err != nil {
		return nil, orNotFound(err, "source", name)
	}
	s.reload(ctx)
	return source, nil
}

// ListHandlerSecrets implements the operation.
func (s *server) ListHandlerSecrets(ctx context.Context, request ListHandlerSecretsRequestObject) (ListHandlerSecretsResponseObject, error) {
	h, err := s.store.Handler(ctx, request.Name)
	if err != nil {
		return nil, orNotFound(err, "handler", request.Name)
	}
	return ListHandlerSecrets200JSONResponse{Items: showSecrets(h.SecretInfo)}, nil
}

// RotateHandlerSecret implements the operation.
func (s *server) RotateHandlerSecret(ctx context.Context, request RotateHandlerSecretRequestObject) (RotateHandlerSecretResponseObject, error) {
	in := or(request.Body, HandlerSecretRotation{})
	var made *string
	if in.Secret == nil {
		made = new(newSigningSecret())
	} else if err := checkNewSecret(ctx, "secret", *in.Secret); err != nil {
		return nil, err
	}
	secret := inbox.Secret(or(in.Secret, or(made, "")))
	overlap := duration(or(in.Overlap, defaultOverlap))
	by := because(actor(ctx), &Reason{Reason: in.Reason, Note: in.Note})
	h, err := s.changeHandlerSecrets(ctx, by, inbox.HandlerSecretRotate, request.Name, func(h *inbox.Handler, now time.Time) error {
		h.Secrets, h.SecretInfo = inbox.RotateSecrets(h.Secrets, h.SecretInfo, secret, now, overlap)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return RotateHandlerSecret200JSONResponse{Secret: made, Items: showSecrets(h.SecretInfo)}, nil
}

// RetireHandlerSecret implements the operation.
func (s *server) RetireHandlerSecret(ctx context.Context, request RetireHandlerSecretRequestObject) (RetireHandlerSecretResponseObject, error) {
	_, err := s.changeHandlerSecrets(ctx, actor(ctx), inbox.HandlerSecretRetire, request.Name, func(h *inbox.Handler, _ time.Time) (err error) {
		h.Secrets, err = retire(h.Secrets, h.SecretInfo, request.Secret)
		return err
	})
	if err != nil {
		return nil, err
	}
	return RetireHandlerSecret204Response{}, nil
}

func (s *server) changeHandlerSecrets(
	ctx context.Context, by inbox.Actor, action inbox.Action, name string, change func(*inbox.Handler, time.Time) error,
) (*inbox.Handler, error) {
	h, err := s.store.ChangeHandlerSecrets(ctx, by, action, name, func(h *inbox.Handler, now time.Time) error {
		if err := checkSubscriptions(scope(ctx), h.Sources); err != nil {
			return err
		}
		if err := change(h, now); err != nil {
			return err
		}
		if err := checkSecretCount(h.Secrets); err != nil {
			return err
		}
		return s.checkHandler(h)
	})
	if err != nil {
		return nil, orNotFound(err, "handler", name)
	}
	s.reload(ctx)
	return h, nil
}

// retire returns the secrets without the one of that id, if another one without an end is left: else they would
// all be gone at some hour of the night.
func retire(secrets []inbox.Secret, info []inbox.SecretInfo, id string) ([]inbox.Secret, error) {
	at := slices.IndexFunc(info, func(i inbox.SecretInfo) bool { return i.ID == id })
	if at < 0 {
		return nil, notFound("secret", id)
	}
	rest := slices.Delete(slices.Clone(info), at, at+1)
	if !slices.ContainsFunc(rest, func(i inbox.SecretInfo) bool { return i.NotAfter.IsZero() }) {
		if len(rest) == 0 {
			return nil, conflict("It is the last secret. Add or rotate in another one first.")
		}
		return nil, conflict("It is the only secret without an end. Add or rotate in another one first.")
	}
	return slices.Delete(slices.Clone(secrets), at, at+1), nil
}

func checkSecretCount(secrets []inbox.Secret) error {
	if len(secrets) > maxSecrets {
		return conflict("There are %d secrets already, which is the most. Retire one first.", maxSecrets)
	}
	return nil
}

func conflict(format string, args ...any) error {
	return &apiError{kind: ProblemConflict, detail: fmt.Sprintf(format, args...)}
}

func showSecrets(info []inbox.SecretInfo) []Secret {
	list := make([]Secret, len(info))
	for i := range info {
		list[i] = showSecret(info[i])
	}
	return list
}

func showSecret(i inbox.SecretInfo) Secret {
	return Secret{ID: i.ID, Kind: SecretKind(i.Kind), AddedAt: i.AddedAt.UTC(), NotAfter: someTime(i.NotAfter)}
}
