package docpage

import (
	"encoding/json"
	"fmt"
	"html/template"
	"net/url"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
)

// view is what the template shows.
type view struct {
	Title, Version, Source string
	Description            string
	Style                  template.CSS
	Tags                   []tag
	Shared                 []answer // by more than one operation
	Schemas                []schema
}

type tag struct {
	Name, Description string
	Operations        []operation
}

type operation struct {
	ID, Method, Path     string
	Summary, Description string
	Role                 string
	Parameters           []field
	Body                 *body
	Answers              []answer
	Curl                 string
}

type body struct {
	Required bool
	Types    []content
	Fields   []field
}

type content struct {
	MediaType string
	Type      template.HTML
}

type answer struct {
	Status, Description string
	Shared              string // the name of one that stands by itself; then the rest is empty
	Headers             []field
	Types               []content
}

type schema struct {
	Name, Description string
	Type              template.HTML
	Fields            []field
}

// field is a parameter, a header or a field of an object.
type field struct {
	ID          string // of the row; "" for none
	Name, In    string
	Type        template.HTML
	Required    bool
	Limits      template.HTML
	Description string
}

var methods = []string{"get", "post", "put", "patch", "delete"}

func (d *document) view(cfg Config) (*view, error) {
	info := d.root.object("info")
	v := &view{Title: info.text("title"), Version: info.text("version"), Description: info.text("description"), Source: cfg.Source}
	at := make(map[string]int)
	for i, t := range d.root.list("tags") {
		v.Tags = append(v.Tags, tag{Name: asObject(t).text("name"), Description: asObject(t).text("description")})
		at[v.Tags[i].Name] = i
	}
	prefix := ""
	if servers := d.root.list("servers"); len(servers) > 0 {
		prefix = asObject(servers[0]).text("url")
	}
	paths := d.root.object("paths")
	for _, path := range paths.keys() {
		item := paths.object(path)
		for _, method := range item.keys() {
			if !slices.Contains(methods, method) {
				continue
			}
			o, err := d.operation(cfg, prefix+path, method, item)
			if err != nil {
				return nil, fmt.Errorf("%s %s: %w", method, path, err)
			}
			name := "other"
			if tags := item.object(method).list("tags"); len(tags) > 0 {
				name = fmt.Sprint(tags[0])
			}
			i, ok := at[name]
			if !ok {
				i, at[name] = len(v.Tags), len(v.Tags)
				v.Tags = append(v.Tags, tag{Name: name})
			}
			v.Tags[i].Operations = append(v.Tags[i].Operations, o)
		}
	}
	responses := d.root.object("components").object("responses")
	for _, name := range responses.keys() {
		a, err := d.answer(responses.object(name))
		if err != nil {
			return nil, fmt.Errorf("response %s: %w", name, err)
		}
		a.Status = name
		v.Shared = append(v.Shared, a)
	}
	schemas := d.root.object("components").object("schemas")
	for _, name := range schemas.keys() {
		s := schemas.object(name)
		shown := schema{Name: name, Description: s.text("description")}
		var err error
		if shown.Fields, err = d.fields(s, "", "schema-"+name+"."); err == nil && len(shown.Fields) == 0 {
			shown.Type, err = d.typeOf(s)
			shown.Type += wrap(" ", limits(s))
		}
		if err != nil {
			return nil, fmt.Errorf("schema %s: %w", name, err)
		}
		v.Schemas = append(v.Schemas, shown)
	}
	slices.SortFunc(v.Schemas, func(a, b schema) int { return strings.Compare(a.Name, b.Name) })
	return v, nil
}

func (d *document) operation(cfg Config, path, method string, item object) (operation, error) {
	o := item.object(method)
	shown := operation{
		ID: o.text("operationId"), Method: strings.ToUpper(method), Path: path, Summary: o.text("summary"),
		Description: o.text("description"), Role: o.text("x-role"),
	}
	query, address := url.Values{}, path
	for _, p := range append(item.list("parameters"), o.list("parameters")...) {
		parameter, _, err := d.resolve(asObject(p))
		if err != nil {
			return shown, err
		}
		f, err := d.field(parameter.text("name"), parameter.object("schema"))
		if err != nil {
			return shown, err
		}
		f.In, f.Required, f.Description = parameter.text("in"), parameter.is("required"), parameter.text("description")
		shown.Parameters = append(shown.Parameters, f)
		example := fmt.Sprint(d.example(parameter.object("schema"), f.Name))
		switch {
		case f.In == "path":
			address = strings.ReplaceAll(address, "{"+f.Name+"}", example)
		case f.In == "query" && f.Required:
			query.Set(f.Name, example)
		}
	}
	if len(query) > 0 {
		address += "?" + query.Encode()
	}
	sends, err := d.body(o, &shown)
	if err != nil {
		return shown, err
	}
	responses := o.object("responses")
	for _, status := range responses.keys() {
		a, err := d.answer(responses.object(status))
		if err != nil {
			return shown, err
		}
		a.Status = status
		shown.Answers = append(shown.Answers, a)
	}
	shown.Curl = curl(cfg, shown.Method, address, sends)
	return shown, nil
}

// body fills in what an operation takes, and returns an example of it; nil if it takes none.
func (d *document) body(o object, shown *operation) (example any, err error) {
	if o.get("requestBody") == nil {
		return nil, nil
	}
	request, _, err := d.resolve(o.object("requestBody"))
	if err != nil {
		return nil, err
	}
	shown.Body = &body{Required: request.is("required")}
	if shown.Body.Types, err = d.contents(request.object("content")); err != nil {
		return nil, err
	}
	s, _, err := d.resolve(request.object("content").object("application/json").object("schema"))
	if err != nil {
		return nil, err
	}
	if shown.Body.Fields, err = d.fields(s, "", ""); err != nil {
		return nil, err
	}
	return d.example(s, ""), nil
}

func (d *document) answer(o object) (a answer, err error) {
	if _, a.Shared, err = d.resolve(o); err != nil || a.Shared != "" {
		return a, err
	}
	a.Description = o.text("description")
	headers := o.object("headers")
	for _, name := range headers.keys() {
		header, _, err := d.resolve(headers.object(name))
		if err != nil {
			return a, err
		}
		f, err := d.field(name, header.object("schema"))
		if err != nil {
			return a, err
		}
		f.Description = header.text("description")
		a.Headers = append(a.Headers, f)
	}
	a.Types, err = d.contents(o.object("content"))
	return a, err
}

func (d *document) contents(o object) (list []content, err error) {
	for _, kind := range o.keys() {
		t, err := d.typeOf(o.object(kind).object("schema"))
		if err != nil {
			return nil, err
		}
		list = append(list, content{kind, t})
	}
	return list, nil
}

// fields returns those of an object, and those of objects that have no name of their own within it.
func (d *document) fields(s object, within, id string) (list []field, err error) {
	for _, part := range s.list("allOf") {
		part, _, err := d.resolve(asObject(part))
		if err != nil {
			return nil, err
		}
		more, err := d.fields(part, within, id)
		if err != nil {
			return nil, err
		}
		list = append(list, more...)
	}
	properties := s.object("properties")
	for _, name := range properties.keys() {
		property := properties.object(name)
		f, err := d.field(within+name, property)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if id != "" {
			f.ID = id + f.Name
		}
		f.Required = slices.Contains(s.list("required"), any(name))
		list = append(list, f)
		inner := within + name + "."
		if items := property.object("items"); items != nil {
			property, inner = items, within+name+"[]."
		}
		more, err := d.fields(property, inner, id)
		if err != nil {
			return nil, err
		}
		list = append(list, more...)
	}
	return list, nil
}

func (d *document) field(name string, s object) (field, error) {
	t, err := d.typeOf(s)
	return field{Name: name, Type: t, Limits: limits(s), Description: s.text("description")}, err
}

// typeOf names a schema's type, and leads to it if it has a name.
func (d *document) typeOf(s object) (template.HTML, error) {
	if _, name, err := d.resolve(s); err != nil || name != "" {
		name = template.HTMLEscapeString(name)
		return template.HTML(`<a href="#schema-` + name + `">` + name + `</a>`), err //nolint:gosec // escaped
	}
	for _, of := range []struct{ key, word string }{{"allOf", " and "}, {"oneOf", " or "}, {"anyOf", " or "}} {
		var parts []string
		for _, part := range s.list(of.key) {
			t, err := d.typeOf(asObject(part))
			if err != nil {
				return "", err
			}
			parts = append(parts, string(t))
		}
		if len(parts) > 0 {
			return template.HTML(strings.Join(parts, of.word)), nil //nolint:gosec // made of types
		}
	}
	kind := s.text("type")
	if kinds := s.list("type"); len(kinds) > 0 {
		kind = join(kinds, " or ")
	}
	switch {
	case s.object("items") != nil:
		t, err := d.typeOf(s.object("items"))
		return "array of " + t + wrap(" of ", limits(s.object("items"))), err
	case kind == "":
		return "anything", nil
	case s.text("format") != "":
		kind += ", " + s.text("format")
	}
	return template.HTML(template.HTMLEscapeString(kind)), nil //nolint:gosec // escaped
}

// limits says what a value must keep to.
func limits(s object) template.HTML {
	var list []string
	code := func(value any) string { return "<code>" + template.HTMLEscapeString(fmt.Sprint(value)) + "</code>" }
	if values := s.list("enum"); len(values) > 0 {
		var codes []string
		for _, v := range values {
			codes = append(codes, code(v))
		}
		list = append(list, "one of "+strings.Join(codes, ", "))
	}
	if value := s.get("const"); value != nil {
		list = append(list, "always "+code(value))
	}
	for _, bound := range []struct{ least, most, unit string }{
		{"minimum", "maximum", ""}, {"minLength", "maxLength", " characters"}, {"minItems", "maxItems", " items"},
	} {
		switch least, most := s.get(bound.least), s.get(bound.most); {
		case least != nil && most != nil:
			list = append(list, code(least)+" to "+code(most)+bound.unit)
		case least != nil:
			list = append(list, "at least "+code(least)+bound.unit)
		case most != nil:
			list = append(list, "at most "+code(most)+bound.unit)
		}
	}
	if pattern := s.text("pattern"); pattern != "" {
		list = append(list, "matches "+code(pattern))
	}
	if value := s.get("default"); value != nil {
		text, _ := json.Marshal(plain(value)) // it was made of what a document holds
		list = append(list, "default "+code(string(text)))
	}
	return template.HTML(strings.Join(list, "; ")) //nolint:gosec // each part is escaped
}

func wrap(before, html template.HTML) template.HTML {
	if html == "" {
		return ""
	}
	return before + html
}

func join(values []any, between string) string {
	texts := make([]string, len(values))
	for i, v := range values {
		texts[i] = fmt.Sprint(v)
	}
	return strings.Join(texts, between)
}

// example makes a value of a schema: what the document gives as one, else the shortest that says something.
func (d *document) example(s object, name string) any {
	if examples := s.list("examples"); len(examples) > 0 {
		return plain(examples[0])
	}
	for _, key := range []string{"example", "const", "default"} {
		if value := s.get(key); value != nil {
			return plain(value)
		}
	}
	if values := s.list("enum"); len(values) > 0 {
		return values[0]
	}
	if s.get("$ref") != nil {
		if at, _, err := d.resolve(s); err == nil {
			return d.example(at, name)
		}
	}
	if parts := slices.Concat(s.list("allOf"), s.list("oneOf"), s.list("anyOf")); len(parts) > 0 {
		return d.example(asObject(parts[0]), name)
	}
	switch kind := s.text("type"); {
	case s.object("items") != nil:
		return []any{d.example(s.object("items"), name)}
	case kind == "integer" || kind == "number":
		if least := s.get("minimum"); least != nil {
			return least
		}
		return 1
	case kind == "boolean":
		return true
	case kind == "object":
		members := ordered{}
		for i, key := range s.object("properties").keys() {
			// All that is needed; if nothing is, something.
			if slices.Contains(s.list("required"), any(key)) || i == 0 && len(s.list("required")) == 0 {
				members = append(members, yaml.MapItem{Key: key, Value: d.example(s.object("properties").object(key), key)})
			}
		}
		return members
	case s.text("format") == "date-time":
		return "2026-01-31T15:04:05Z"
	}
	return name
}

// ordered is a JSON object that keeps its order.
type ordered yaml.MapSlice

// MarshalJSON implements json.Marshaler.
func (o ordered) MarshalJSON() ([]byte, error) {
	parts := make([]string, len(o))
	for i, item := range o {
		key, err := json.Marshal(fmt.Sprint(item.Key))
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(item.Value)
		if err != nil {
			return nil, err
		}
		parts[i] = string(key) + ": " + string(value)
	}
	return []byte("{" + strings.Join(parts, ", ") + "}"), nil
}

// plain makes a value of the document one for JSON.
func plain(value any) any {
	switch value := value.(type) {
	case yaml.MapSlice:
		o := make(ordered, len(value))
		for i, item := range value {
			o[i] = yaml.MapItem{Key: item.Key, Value: plain(item.Value)}
		}
		return o
	case []any:
		list := make([]any, len(value))
		for i, item := range value {
			list[i] = plain(item)
		}
		return list
	}
	return value
}

// curl writes the call of an operation for a shell.
func curl(cfg Config, method, address string, sends any) string {
	line := "curl"
	if method != "GET" && (method != "POST" || sends == nil) {
		line += " -X " + method
	}
	line += ` -H "Authorization: Bearer ` + cfg.Token + `"`
	if sends != nil {
		var text strings.Builder
		encoder := json.NewEncoder(&text)
		encoder.SetEscapeHTML(false)
		_ = encoder.Encode(sends) // it was made of what a document holds
		line += " -H 'Content-Type: application/json' \\\n  -d '" + strings.ReplaceAll(strings.TrimSpace(text.String()), "'", `'\''`) + "'"
	}
	return line + " \\\n  \"" + cfg.URL + address + `"`
}
