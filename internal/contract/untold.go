package contract

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
)

// Untold returns the limits that a server checks by its validator's tags, and that the document doesn't tell its clients.
func (c *Contract) Untold() []string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(c.doc.Components.Schemas)) {
		list = append(list, untoldOf(name, c.doc.Components.Schemas[name].Value)...)
	}
	for path, item := range c.doc.Paths.Map() {
		for method, o := range item.Operations() {
			for _, p := range o.Parameters {
				at := fmt.Sprintf("%s %s: %s", method, path, p.Value.Name)
				list = append(list, untold(at, p.Value.Schema.Value, p.Value.Extensions)...)
			}
		}
	}
	return list
}

func untoldOf(at string, object *openapi3.Schema) []string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(object.Properties)) {
		property := object.Properties[name].Value
		list = append(list, untold(at+"."+name, property, property.Extensions)...)
		list = append(list, untoldOf(at+"."+name, property)...)
	}
	return list
}

func untold(at string, schema *openapi3.Schema, extensions map[string]any) []string {
	tags, _ := extensions["x-oapi-codegen-extra-tags"].(map[string]any)
	rules, _ := tags["validate"].(string)
	schema = own(schema)
	var list []string
	ofKeys := false // the document has no words for limits of an object's names
	for rule := range strings.SplitSeq(rules, ",") {
		name, value, _ := strings.Cut(rule, "=")
		told := ""
		switch name {
		case "keys", "endkeys":
			ofKeys = name == "keys"
			continue
		case "dive": // what follows is about the items
			items := schema.Items
			if items == nil {
				items = schema.AdditionalProperties.Schema
			}
			if items == nil {
				return append(list, at+": has no items to check")
			}
			at, schema = at+"[]", own(items.Value)
			continue
		case "min":
			told = least(schema)
		case "max":
			told = most(schema)
		case "oneof":
			var values []string
			for _, v := range schema.Enum {
				values = append(values, fmt.Sprint(v))
			}
			told = strings.Join(values, " ")
		default:
			continue
		}
		if told != value && !ofKeys {
			list = append(list, fmt.Sprintf("%s: %s is checked, and the document says %q", at, rule, told))
		}
	}
	return list
}

func least(schema *openapi3.Schema) string {
	switch {
	case schema.Type.Is("string"):
		return strconv.FormatUint(schema.MinLength, 10)
	case schema.Type.Is("array"):
		return strconv.FormatUint(schema.MinItems, 10)
	case schema.Type.Is("object"):
		return strconv.FormatUint(schema.MinProps, 10)
	case schema.Min != nil:
		return strconv.FormatFloat(*schema.Min, 'f', -1, 64)
	}
	return ""
}

func most(schema *openapi3.Schema) string {
	switch {
	case schema.Type.Is("string") && schema.MaxLength != nil:
		return strconv.FormatUint(*schema.MaxLength, 10)
	case schema.Type.Is("array") && schema.MaxItems != nil:
		return strconv.FormatUint(*schema.MaxItems, 10)
	case schema.Type.Is("object") && schema.MaxProps != nil:
		return strconv.FormatUint(*schema.MaxProps, 10)
	case schema.Max != nil:
		return strconv.FormatFloat(*schema.Max, 'f', -1, 64)
	}
	return ""
}
