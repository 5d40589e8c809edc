package docpage

import (
	"errors"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"
)

// document is an OpenAPI document as it was written, its order included.
type document struct{ root object }

// object is a mapping in its order.
type object yaml.MapSlice

func readDocument(text []byte) (*document, error) {
	var root yaml.MapSlice
	if err := yaml.UnmarshalWithOptions(text, &root, yaml.UseOrderedMap()); err != nil {
		return nil, err
	}
	d := &document{root: object(root)}
	if d.root.get("paths") == nil {
		return nil, errors.New("it has no paths")
	}
	return d, nil
}

func (o object) get(key string) any {
	for _, item := range o {
		if item.Key == key {
			return item.Value
		}
	}
	return nil
}

func (o object) object(key string) object { return asObject(o.get(key)) }

func (o object) list(key string) []any {
	list, _ := o.get(key).([]any)
	return list
}

func (o object) text(key string) string {
	value := o.get(key)
	if value == nil {
		return ""
	}
	return strings.TrimSpace(fmt.Sprint(value))
}

func (o object) is(key string) bool {
	yes, _ := o.get(key).(bool)
	return yes
}

func (o object) keys() []string {
	keys := make([]string, len(o))
	for i, item := range o {
		keys[i] = fmt.Sprint(item.Key)
	}
	return keys
}

func asObject(value any) object {
	m, _ := value.(yaml.MapSlice)
	return object(m)
}

// resolve follows a reference within the document and returns the name at its end. Without one it returns the object itself.
func (d *document) resolve(o object) (_ object, name string, err error) {
	ref := o.text("$ref")
	if ref == "" {
		return o, "", nil
	}
	at := d.root
	parts := strings.Split(ref, "/")
	for _, part := range parts[1:] {
		at = at.object(part)
	}
	if parts[0] != "#" || at == nil {
		return nil, "", fmt.Errorf("%s leads nowhere", ref)
	}
	return at, parts[len(parts)-1], nil
}
