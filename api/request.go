package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-playground/validator/v10"
)

// maxBody is the most that a request's body may have.
const maxBody = 1 << 20

type bodyKey struct{}

// readBody reads a request's body within its limit and keeps it for checkRequest.
func (s *server) readBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			next.ServeHTTP(w, r)
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if _, ok := errors.AsType[*http.MaxBytesError](err); err != nil && !ok {
			err = &apiError{kind: ProblemBadRequest, detail: "The body ended before its announced length."}
		}
		if err == nil && len(body) > 0 {
			if len(bytes.TrimSpace(body)) == 0 {
				err = io.ErrUnexpectedEOF
			}
			kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
			if kind != "application/json" {
				err = &apiError{kind: ProblemUnsupportedMediaType, detail: "Send JSON, with Content-Type: application/json."}
			}
			if err == nil && !utf8.Valid(body) {
				// encoding/json would put something else in its place: a secret that verifies nothing, say.
				err = &apiError{kind: ProblemBadRequest, detail: "The body isn't UTF-8."}
			}
		}
		if err != nil {
			s.fail(w, r, err)
			return
		}
		r = r.WithContext(context.WithValue(r.Context(), bodyKey{}, body))
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
	})
}

// checkRequest refuses what the generated code lets pass: parameters and fields that the contract doesn't
// have, which are typing errors, and values out of range.
func (s *server) checkRequest(next StrictHandlerFunc, _ string) StrictHandlerFunc {
	return func(ctx context.Context, w http.ResponseWriter, r *http.Request, request any) (any, error) {
		if !isText(r.URL.Path) {
			return nil, &apiError{kind: ProblemNotFound, detail: "Nothing has a name that isn't UTF-8 or has a NUL character."}
		}
		object := reflect.ValueOf(request)
		params := object.FieldByName("Params")
		if err := checkQuery(r.URL.RawQuery, params); err != nil {
			return nil, err
		}
		if params.IsValid() {
			if err := check(params.Interface()); err != nil {
				return nil, err
			}
		}
		text, _ := ctx.Value(bodyKey{}).([]byte)
		switch body := object.FieldByName("Body"); {
		case !body.IsValid() && len(text) > 0:
			return nil, &apiError{kind: ProblemBadRequest, detail: "This operation takes no body."}
		case body.IsValid() && !body.IsNil():
			if err := checkFields(text, body.Type().Elem()); err != nil {
				return nil, err
			}
			if err := refuseNulls(text, body.Type().Elem()); err != nil {
				return nil, err
			}
			if err := check(body.Interface()); err != nil {
				return nil, err
			}
		}
		return next(ctx, w, r, request)
	}
}

func checkQuery(query string, params reflect.Value) error {
	values, err := url.ParseQuery(query)
	if err != nil {
		return &apiError{kind: ProblemBadRequest, detail: "The query isn't encoded as a query."}
	}
	var known []string
	if params.IsValid() {
		known = names(params.Type(), "form")
	}
	given := slices.Sorted(maps.Keys(values))
	if err := refuseUnknown("", given, known, "parameter"); err != nil {
		return err
	}
	for _, name := range given {
		if len(values[name]) > 1 {
			return &apiError{kind: ProblemBadRequest, fields: []FieldError{{Field: name, Detail: "must be given once"}}}
		}
		if !isText(values[name][0]) {
			return invalid(name, "must be UTF-8 without a NUL character")
		}
	}
	return nil
}

// isText reports whether the database could hold the text.
func isText(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }

// checkFields refuses unknown fields, also those of objects within, and what follows the JSON object.
func checkFields(body []byte, t reflect.Type) error {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(body, &object); err != nil {
		return err
	}
	if object == nil {
		return &apiError{kind: ProblemBadRequest, detail: "The body must be a JSON object."}
	}
	if err := refuseTwice(body); err != nil {
		return err
	}
	return refuseUnknownFields("", body, t)
}

// refuseTwice refuses an object that has a name twice. encoding/json would mix both values, and the checks for unknown
// fields and nulls would see the last one only.
func refuseTwice(body []byte) error {
	type level struct {
		names map[string]bool // nil in an array
		value bool            // a name has come, and its value is next
	}
	var levels []level
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber() // of any size
	for {
		token, err := decoder.Token()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if token == json.Delim('}') || token == json.Delim(']') {
			levels = levels[:len(levels)-1]
			continue
		}
		if n := len(levels); n > 0 && levels[n-1].names != nil {
			in := &levels[n-1]
			if in.value = !in.value; in.value {
				name, _ := token.(string)
				if in.names[name] {
					return &apiError{kind: ProblemBadRequest, fields: []FieldError{{Field: name, Detail: "must be given once"}}}
				}
				in.names[name] = true
				continue
			}
		}
		switch token {
		case json.Delim('{'):
			levels = append(levels, level{names: map[string]bool{}})
		case json.Delim('['):
			levels = append(levels, level{})
		}
	}
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// refuseUnknownFields leaves alone what isn't of the type's form; decoding says so. path leads to the value.
func refuseUnknownFields(path string, value json.RawMessage, t reflect.Type) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if reflect.PointerTo(t).Implements(unmarshaler) {
		return nil // it has a form of its own, such as a time
	}
	switch t.Kind() {
	case reflect.Struct:
		var object map[string]json.RawMessage
		if json.Unmarshal(value, &object) != nil {
			return nil
		}
		known := names(t, "json")
		given := slices.Sorted(maps.Keys(object))
		if err := refuseUnknown(path, given, known, "field"); err != nil {
			return err
		}
		for field := range t.Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if inner, ok := object[name]; ok {
				if err := refuseUnknownFields(path+name+".", inner, field.Type); err != nil {
					return err
				}
			}
		}
	case reflect.Slice:
		var list []json.RawMessage
		if json.Unmarshal(value, &list) != nil {
			return nil
		}
		for i, inner := range list {
			if err := refuseUnknownFields(fmt.Sprintf("%s[%d].", strings.TrimSuffix(path, "."), i), inner, t.Elem()); err != nil {
				return err
			}
		}
	}
	return nil
}

// refuseUnknown names what of given isn't known. path is where it stands, if not at the top.
func refuseUnknown(path string, given, known []string, what string) error {
	var unknown []FieldError
	for _, name := range given {
		if !slices.Contains(known, name) {
			detail := "is no " + what + " of this operation"
			if len(known) > 0 {
				detail += "; there are " + strings.Join(known, ", ")
			}
			unknown = append(unknown, FieldError{Field: path + name, Detail: detail})
		}
	}
	if len(unknown) > 0 {
		return &apiError{kind: ProblemBadRequest, fields: unknown}
	}
	return nil
}

// names returns the fields of a struct, as a tag has them.
func names(t reflect.Type, tag string) []string {
	var list []string
	for field := range t.Fields() {
		// A parameter that is a header has no tag of a query's.
		if name, _, _ := strings.Cut(field.Tag.Get(tag), ","); name != "" {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return list
}

var (
	namePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}$`)
	tokenName   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@-]{0,62}$`)
	validate    = newValidator()
)

func newValidator() *validator.Validate {
	v := validator.New(validator.WithRequiredStructEnabled())
	v.RegisterTagNameFunc(func(field reflect.StructField) string {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		return name
	})
	for tag, ok := range map[string]validator.Func{
		"name":        func(f validator.FieldLevel) bool { return namePattern.MatchString(f.Field().String()) },
		"token_name":  func(f validator.FieldLevel) bool { return tokenName.MatchString(f.Field().String()) },
		"handler_url": func(f validator.FieldLevel) bool { return isHandlerURL(f.Field().String()) },
		"glob": func(f validator.FieldLevel) bool {
			_, err := path.Match(f.Field().String(), "")
			return err == nil && !strings.Contains(f.Field().String(), "\x00")
		},
		"object": func(f validator.FieldLevel) bool { return bytes.HasPrefix(f.Field().Bytes(), []byte("{")) },
		"duration": func(f validator.FieldLevel) bool {
			least, most := durationRange(f.Param())
			d, err := time.ParseDuration(f.Field().String())
			return err == nil && d >= least && d <= most
		},
	} {
		if err := v.RegisterValidation(tag, ok); err != nil {
			panic(err) // the tags above are well-formed
		}
	}
	return v
}

// durationRange reads the parameter of the tag duration: the least and the most, with a space between.
func durationRange(param string) (least, most time.Duration) {
	low, high, _ := strings.Cut(param, " ")
	least, _ = time.ParseDuration(low)
	most, _ = time.ParseDuration(high)
	return least, most
}

// isHandlerURL allows no user in a URL: lists would show the password.
func isHandlerURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" && u.User == nil && u.Fragment == ""
}

// check validates a struct by its tags, and reports every field that is wrong.
func check(value any) error {
	err := validate.Struct(value)
	wrong, ok := errors.AsType[validator.ValidationErrors](err)
	if !ok {
		return err
	}
	fields := make([]FieldError, len(wrong))
	for i, e := range wrong {
		_, field, _ := strings.Cut(e.Namespace(), ".")
		fields[i] = FieldError{Field: field, Detail: rule(e)}
	}
	return &apiError{kind: ProblemInvalid, fields: fields}
}

// rule says what a validation tag asks for.
func rule(e validator.FieldError) string {
	unit := ""
	switch e.Kind() {
	case reflect.String:
		unit = " characters"
	case reflect.Slice:
		unit = " items"
	}
	switch e.Tag() {
	case "required":
		return "is required"
	case "min":
		return "must be at least " + e.Param() + unit
	case "max":
		return "must be at most " + e.Param() + unit
	case "oneof":
		return "must be one of " + strings.ReplaceAll(e.Param(), " ", ", ")
	case "name":
		return "must be 1 to 63 of a-z, 0-9, - and _, and begin with a letter or digit"
	case "token_name":
		return "must be 1 to 63 of a-z, A-Z, 0-9 and . _ @ -, and begin with a letter or digit"
	case "handler_url":
		return "must be an http or https URL with a host, without user, password and fragment"
	case "glob":
		return `must be a glob as path.Match reads it, such as "order.*"`
	case "object":
		return "must be a JSON object"
	case "duration":
		least, most := durationRange(e.Param())
		return fmt.Sprintf("must be a duration from %s to %s, such as 1m30s", formatDuration(least), formatDuration(most))
	}
	return "isn't allowed"
}

// jsonKind names a type as JSON does.
func jsonKind(t reflect.Type) string {
	if t == reflect.TypeFor[Time]() {
		return "an RFC 3339 time, such as 2026-01-31T15:04:05Z"
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice, reflect.Array:
		return "an array"
	case reflect.Struct, reflect.Map:
		return "an object"
	}
	return "a whole number that fits"
}

// formatDuration writes a duration as Go does, without the zeros at its end: 1h, not 1h0m0s.
func formatDuration(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
