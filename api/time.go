package api

import (
	"encoding/json"
	"reflect"
	"time"
)

// Time is a time in a request's body. Errors of time.Time don't say which field they are about.
type Time struct{ time.Time }

// UnmarshalJSON implements json.Unmarshaler.
func (t *Time) UnmarshalJSON(text []byte) error {
	known := t.Time.UnmarshalJSON(text) == nil
	if year := t.UTC().Year(); known && !t.IsZero() && year >= 1 && year <= 9999 {
		return nil
	}
	given := "number"
	switch text[0] {
	case '"':
		given = "another string"
		if known {
			// The zero time would be taken for a field that is left out, and years beyond can't be shown again.
			given = "the first moment of all or one outside the years 1 to 9999 in UTC"
		}
	case 't', 'f':
		given = "bool"
	case '[':
		given = "array"
	case '{':
		given = "object"
	}
	return &json.UnmarshalTypeError{Value: given, Type: reflect.TypeFor[Time]()} // its caller adds the field
}

func (t *Time) std() *time.Time {
	if t == nil {
		return nil
	}
	return &t.Time
}

// bodyTime is someTime for what is a request's body as well.
func bodyTime(t time.Time) *Time {
	if shown := someTime(t); shown != nil {
		return &Time{*shown}
	}
	return nil
}
