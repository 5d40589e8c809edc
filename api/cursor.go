package api

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/inboxd/inboxd/inbox"
)

// A cursor is a position, and the seal of the list and the filter that it belongs to. What the token may see is no
// part of the filter: it is looked up anew for each page.

// formatCursor writes a position so that nobody is tempted to compute with it.
func formatCursor(list string, f inbox.Filter, position inbox.DeliveryID) *string {
	if position.Message == 0 {
		return nil
	}
	f.Within = nil
	return sealCursor(list, f, position.String())
}

// parseCursor reads a position of the same list with the same filter; another one's is refused.
func parseCursor(list string, f inbox.Filter, text *string) (position inbox.DeliveryID, err error) {
	if text == nil {
		return position, nil
	}
	f.Within = nil
	rest, err := openCursor(list, f, *text)
	if err != nil {
		return position, err
	}
	if _, err := fmt.Sscanf(rest, "%d.%d", &position.Message, &position.Handler); err != nil || position.String() != rest ||
		position.Message <= 0 || position.Message == math.MaxInt64 || position.Handler < 0 {
		return inbox.DeliveryID{}, badCursor("isn't a cursor of this server")
	}
	return position, nil
}

// cursorSeal tells one list and filter from another; it keeps nobody from making a cursor up.
func cursorSeal(list string, filter any) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %+v", list, filter))
	return base64.RawURLEncoding.EncodeToString(sum[:6])
}

func sealCursor(list string, filter any, position string) *string {
	text := base64.RawURLEncoding.EncodeToString([]byte(cursorSeal(list, filter) + " " + position))
	return &text
}

func openCursor(list string, filter any, text string) (position string, err error) {
	plain, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return "", badCursor("isn't a cursor of this server")
	}
	seal, position, ok := strings.Cut(string(plain), " ")
	if !ok {
		return "", badCursor("isn't a cursor of this server")
	}
	if seal != cursorSeal(list, filter) {
		return "", badCursor("is a foreign cursor: it continues another list, or this one with another filter")
	}
	return position, nil
}

func badCursor(detail string) error {
	return &apiError{kind: ProblemBadRequest, fields: []FieldError{{Field: "cursor", Detail: detail}}}
}

func formatLedgerCursor(list string, f inbox.LedgerFilter, position inbox.LedgerPosition) *string {
	if position == (inbox.LedgerPosition{}) {
		return nil
	}
	f.Within = nil
	return sealCursor(list, f, ledgerPosition(position))
}

func ledgerPosition(p inbox.LedgerPosition) string {
	return fmt.Sprintf("%d.%s.%d", p.FinishedAt.UnixMicro(), p.DeliveryID, p.ClaimSeq)
}

func parseLedgerCursor(list string, f inbox.LedgerFilter, text *string) (position inbox.LedgerPosition, err error) {
	if text == nil {
		return position, nil
	}
	f.Within = nil
	rest, err := openCursor(list, f, *text)
	if err != nil {
		return position, err
	}
	var micro int64
	_, err = fmt.Sscanf(rest, "%d.%d.%d.%d", &micro, &position.Message, &position.Handler, &position.ClaimSeq)
	// The largest time of PostgreSQL is far later; this one is the largest that JSON can show.
	position.FinishedAt = time.UnixMicro(micro).UTC()
	if err != nil || ledgerPosition(position) != rest || micro <= 0 || position.FinishedAt.Year() > 9999 || position.Message <= 0 {
		return inbox.LedgerPosition{}, badCursor("isn't a cursor of this server")
	}
	return position, nil
}
