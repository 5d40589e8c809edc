package api

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// refuseNulls refuses a null where a value belongs. It would be taken for a field that is left out: a change would change
// nothing, and a filter would let everything pass.
func refuseNulls(body []byte, t reflect.Type) error {
	var value any
	if err := json.Unmarshal(body, &value); err != nil {
		return err
	}
	if found := nulls("", value, t); len(found) > 0 {
		return &apiError{kind: ProblemBadRequest, fields: found}
	}
	return nil
}

// nulls looks into what has a form; path leads to the value.
func nulls(path string, value any, t reflect.Type) (found []FieldError) {
	if value == nil {
		return []FieldError{{Field: strings.TrimSuffix(path, "."), Detail: "must not be null; leave it out"}}
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch value := value.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(value)) {
			if inner := memberType(t, name); inner != nil {
				found = append(found, nulls(path+name+".", value[name], inner)...)
			}
		}
	case []any:
		if t.Kind() == reflect.Slice {
			for i, item := range value {
				found = append(found, nulls(fmt.Sprintf("%s[%d].", strings.TrimSuffix(path, "."), i), item, t.Elem())...)
			}
		}
	}
	return found
}

// memberType returns the type of an object's member, or nil if it has none that is known, as in free-form settings.
func memberType(t reflect.Type, name string) reflect.Type {
	switch t.Kind() {
	case reflect.Map:
		return t.Elem()
	case reflect.Struct:
		for field := range t.Fields() {
			if known, _, _ := strings.Cut(field.Tag.Get("json"), ","); known == name {
				return field.Type
			}
		}
	}
	return nil
}
