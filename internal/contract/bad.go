package contract

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
)

// Bad is a request that a server must refuse.
type Bad struct {
	Name        string
	Query       string
	Body        string
	ContentType string // of the body; "" for JSON
	Field       string // what the refusal must name; "" for nothing
	Statuses    []int  // one of which must be answered
}

// One or the other: which of the two it is depends on where the server finds out.
var refused = []int{http.StatusBadRequest, http.StatusUnprocessableEntity}

// BadRequests makes of an operation's parameters and body all that they don't allow. Bodies are no larger than bodyLimit,
// except one, which is larger by a byte.
func (c *Contract) BadRequests(o Operation, bodyLimit int) []Bad {
	item := c.doc.Paths.Value(strings.TrimPrefix(o.Path, c.doc.Servers[0].URL))
	operation := item.GetOperation(o.Method)
	list := badQueries(slices.Concat(item.Parameters, operation.Parameters))
	if operation.RequestBody == nil {
		if o.Method == http.MethodPost {
			list = append(list, Bad{Name: "a body where there is none", Body: "{}", Statuses: []int{http.StatusBadRequest}})
		}
		return list
	}
	for i := range list {
		list[i].Body = "{}"
	}
	body := operation.RequestBody.Value
	if body.Required {
		list = append(list, Bad{Name: "no body", Statuses: []int{http.StatusBadRequest}})
	}
	for _, text := range []string{"null", "[]", `"x"`, "7", `{"a": 1`, "{} {}", "{'a': 1}", "a=1", " "} {
		list = append(list, Bad{Name: "the body " + text, Body: text, Statuses: []int{http.StatusBadRequest}})
	}
	filler := strings.Repeat("x", bodyLimit+1-len(`{"":1}`))
	return append(append(
		list,
		Bad{Name: "a body over the limit", Body: `{"` + filler + `":1}`, Statuses: []int{http.StatusRequestEntityTooLarge}},
		Bad{Name: "a form", Body: "a=1", ContentType: "application/x-www-form-urlencoded", Statuses: []int{http.StatusUnsupportedMediaType}},
		Bad{Name: "JSON as text", Body: "{}", ContentType: "text/plain", Statuses: []int{http.StatusUnsupportedMediaType}},
		Bad{Name: "JSON of no type", Body: "{}", ContentType: "-", Statuses: []int{http.StatusUnsupportedMediaType}},
	), badObjects("", body.Content["application/json"].Schema.Value, func(value any) any { return value })...)
}

func badQueries(parameters openapi3.Parameters) []Bad {
	needed := url.Values{}
	var query []*openapi3.Parameter
	for _, p := range parameters {
		if p.Value.In == openapi3.ParameterInQuery {
			query = append(query, p.Value)
			if p.Value.Required {
				needed.Set(p.Value.Name, "x")
			}
		}
	}
	var list []Bad
	add := func(what, name string, statuses []int, values ...string) {
		with := maps.Clone(needed)
		with[name] = values
		list = append(list, Bad{Name: name + " " + what, Query: with.Encode(), Field: name, Statuses: statuses})
	}
	unreadable, wrong := []int{http.StatusBadRequest}, []int{http.StatusUnprocessableEntity}
	add("is no parameter", "no_such_parameter", unreadable, "1")
	list = append(list, Bad{Name: "a query that is none", Query: "a=%zz", Statuses: unreadable})
	for _, p := range query {
		if p.Required {
			list = append(list, Bad{Name: p.Name + " is missing", Field: p.Name, Statuses: unreadable})
		}
		schema := own(p.Schema.Value)
		add("twice", p.Name, unreadable, valid(schema), valid(schema))
		for _, value := range badValues(schema) {
			statuses := wrong
			if value.kind {
				statuses = unreadable
			}
			if text, ok := value.json.(string); ok {
				add(value.name, p.Name, statuses, text)
			} else if _, list := value.json.([]any); !list {
				add(value.name, p.Name, statuses, fmt.Sprint(value.json))
			}
		}
		if schema.Type.Is("string") {
			for _, text := range []string{"\x00", "\xff"} {
				with := maps.Clone(needed)
				with.Set(p.Name, text)
				list = append(list, Bad{Name: fmt.Sprintf("%s is %q", p.Name, text), Query: with.Encode(), Statuses: refused})
			}
		}
	}
	return list
}

// badValue is one that a schema doesn't allow.
type badValue struct {
	name string
	json any
	kind bool // it isn't of the schema's type
}

func badValues(schema *openapi3.Schema) []badValue {
	var list []badValue
	add := func(name string, value any) { list = append(list, badValue{name, value, false}) }
	switch {
	case schema.Type.Is("integer"), schema.Type.Is("number"):
		list = append(list, badValue{"is a word", "ten", true}, badValue{"is huge", json.RawMessage("99999999999999999999"), true})
		if schema.Type.Is("integer") {
			list = append(list, badValue{"is a fraction", json.RawMessage("1.5"), true})
		}
		if schema.Min != nil {
			add("is too little", int64(*schema.Min)-1)
		}
		if schema.Max != nil {
			add("is too much", int64(*schema.Max)+1)
		}
	case schema.Type.Is("boolean"):
		list = append(list, badValue{"is a word", "maybe", true})
	case schema.Type.Is("string"):
		if len(schema.Enum) > 0 {
			add("is none of the list", "no-such-value")
		}
		if schema.Format == "date-time" {
			list = append(list, badValue{"is no time", "yesterday", true})
		}
		if schema.MaxLength != nil {
			add("is too long", strings.Repeat("x", int(*schema.MaxLength)+1))
		}
		if schema.MinLength > 0 {
			add("is too short", strings.Repeat("x", int(schema.MinLength)-1))
		}
		if schema.Pattern != "" {
			add("doesn't fit the pattern", "No Such Name!")
		}
	case schema.Type.Is("array"):
		if schema.MaxItems != nil {
			add("has too many items", slices.Repeat([]any{validJSON(own(schema.Items.Value))}, int(*schema.MaxItems)+1))
		}
		if schema.MinItems > 0 {
			add("has too few items", slices.Repeat([]any{validJSON(own(schema.Items.Value))}, int(schema.MinItems)-1))
		}
		for _, item := range badValues(own(schema.Items.Value)) {
			list = append(list, badValue{"has an item that " + item.name, []any{item.json}, item.kind})
		}
	}
	return list
}

// badObjects makes bodies with one mistake each; within puts an object where it belongs in the body.
func badObjects(prefix string, schema *openapi3.Schema, within func(any) any) []Bad {
	var list []Bad
	add := func(name, field string, statuses []int, value any) {
		text, err := json.Marshal(within(value))
		if err != nil {
			panic(err) // the values are made here
		}
		list = append(list, Bad{Name: prefix + name, Body: string(text), Field: field, Statuses: statuses})
	}
	if schema.AdditionalProperties.Has != nil && !*schema.AdditionalProperties.Has {
		add("no_such_field is unknown", prefix+"no_such_field", []int{http.StatusBadRequest}, map[string]any{"no_such_field": 1})
	}
	for _, name := range schema.Required {
		others := make(map[string]any)
		for _, other := range schema.Required {
			if other != name {
				others[other] = validJSON(own(schema.Properties[other].Value))
			}
		}
		add(name+" is missing", prefix+name, []int{http.StatusUnprocessableEntity}, others)
	}
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		property := own(schema.Properties[name].Value)
		of := func(value any) map[string]any { return map[string]any{name: value} }
		for _, wrong := range []any{nil, "x", 7, true, []any{7}, []any{nil}, map[string]any{"a": 1}} {
			if !isOf(property, wrong) {
				add(fmt.Sprintf("%s is %v", name, wrong), prefix+name, refused, of(wrong))
			}
		}
		for _, value := range badValues(property) {
			statuses := []int{http.StatusUnprocessableEntity}
			if value.kind {
				statuses = refused // a number that doesn't fit is found when it is read
			}
			add(name+" "+value.name, prefix+name, statuses, of(value.json))
		}
		if len(property.Properties) > 0 {
			list = append(list, badObjects(prefix+name+".", property, func(value any) any { return within(of(value)) })...)
		}
	}
	return list
}

// own is the schema that another one only refers to, to say more about its place.
func own(schema *openapi3.Schema) *openapi3.Schema {
	for schema.Type == nil && len(schema.AllOf) == 1 {
		schema = schema.AllOf[0].Value
	}
	return schema
}

// isOf reports whether a value is of a schema's type.
func isOf(schema *openapi3.Schema, value any) bool {
	switch value := value.(type) {
	case nil:
		return false
	case string:
		return schema.Type.Is("string")
	case int:
		return schema.Type.Is("integer") || schema.Type.Is("number")
	case bool:
		return schema.Type.Is("boolean")
	case []any:
		return schema.Type.Is("array") && value[0] != nil && (schema.Items.Value.Type.Is("integer") || schema.Items.Value.Type.Is("number"))
	}
	return schema.Type.Is("object")
}

// valid is a value of a query parameter that is allowed by itself.
func valid(schema *openapi3.Schema) string { return fmt.Sprint(validJSON(schema)) }

func validJSON(schema *openapi3.Schema) any {
	switch {
	case len(schema.Enum) > 0:
		return schema.Enum[0]
	case schema.Format == "date-time":
		return "2026-01-02T03:04:05Z"
	case schema.Type.Is("integer"), schema.Type.Is("number"):
		if schema.Min != nil {
			return int64(*schema.Min)
		}
		return 1
	case schema.Type.Is("array"):
		return []any{validJSON(own(schema.Items.Value))}
	case schema.Type.Is("object"):
		return map[string]any{}
	case schema.Type.Is("boolean"):
		return true
	}
	return "x"
}
