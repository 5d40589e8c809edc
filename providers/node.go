package providers

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

type nodeKind string

const (
	kindScalar nodeKind = "a text"
	kindList   nodeKind = "a list"
	kindObject nodeKind = "an object"
)

// node is one value of a sheet or of a source's settings. Both are read into nodes first, so that both
// are checked by the same code and a mistake can say where it stands.
type node struct {
	at   string // the sheet's file and line, or "settings"
	path string // the dotted key; "" for the whole
	kind nodeKind

	text   string // of a scalar; numbers and booleans as written
	list   []node
	fields []field
}

type field struct {
	name  string
	value node
}

func (n node) errorf(format string, args ...any) error {
	where := n.at
	if n.path != "" {
		where += ": " + n.path
	}
	return fmt.Errorf("%s: %w", where, fmt.Errorf(format, args...))
}

// child returns the path of a member.
func (n node) child(name string) string {
	if n.path == "" {
		return name
	}
	return n.path + "." + name
}

// add appends a member. A second one of the same name is refused: one of them would be ignored silently.
func (n *node) add(name string, value node) error {
	for _, f := range n.fields {
		if f.name == name {
			return value.errorf("is set twice")
		}
	}
	n.fields = append(n.fields, field{name, value})
	return nil
}

// parseYAML reads a sheet's text.
func parseYAML(file string, text []byte) (node, error) {
	parsed, err := parser.ParseBytes(text, 0)
	if err != nil {
		return node{}, fmt.Errorf("%s: %w", file, err)
	}
	if len(parsed.Docs) != 1 || parsed.Docs[0].Body == nil {
		return node{}, fmt.Errorf("%s: one YAML document is expected", file)
	}
	return fromYAML(file, "", parsed.Docs[0].Body)
}

func fromYAML(file, path string, from ast.Node) (node, error) {
	n := node{at: fmt.Sprintf("%s:%d", file, from.GetToken().Position.Line), path: path, kind: kindScalar}
	switch v := from.(type) {
	case *ast.StringNode:
		n.text = v.Value
	case *ast.LiteralNode:
		n.text = v.Value.Value
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		n.text = v.GetToken().Value
	case *ast.SequenceNode:
		n.kind = kindList
		for i, element := range v.Values {
			value, err := fromYAML(file, fmt.Sprintf("%s[%d]", path, i), element)
			if err != nil {
				return node{}, err
			}
			n.list = append(n.list, value)
		}
	case *ast.MappingNode:
		n.kind = kindObject
		for _, member := range v.Values {
			key := member.Key.GetToken()
			value, err := fromYAML(file, n.child(key.Value), member.Value)
			if err != nil {
				return node{}, err
			}
			value.at = fmt.Sprintf("%s:%d", file, key.Position.Line)
			if err := n.add(key.Value, value); err != nil {
				return node{}, err
			}
		}
	case *ast.NullNode:
		return node{}, n.errorf("has no value")
	default:
		// Anchors, aliases and tags: a sheet is read by people, who should find each value where it is used.
		return node{}, n.errorf("%s is not used in sheets", from.Type())
	}
	return n, nil
}

// maxSettingsDepth is deeper than any key of a sheet.
const maxSettingsDepth = 16

// parseJSON reads a source's settings. Nothing at all means no settings.
func parseJSON(text []byte) (node, error) {
	const at = "settings"
	if len(bytes.TrimSpace(text)) == 0 {
		return node{at: at, kind: kindObject}, nil
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	n, err := fromJSON(dec, node{at: at}, maxSettingsDepth)
	if err != nil {
		return node{}, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return node{}, n.errorf("more than one JSON value")
	}
	return n, nil
}

// fromJSON fills n with the next value.
func fromJSON(dec *json.Decoder, n node, depth int) (node, error) {
	if depth == 0 {
		return node{}, n.errorf("is nested too deeply")
	}
	token, err := dec.Token()
	if err != nil {
		return node{}, n.errorf("is not JSON: %w", err)
	}
	n.kind = kindScalar
	switch v := token.(type) {
	case string:
		n.text = v
	case json.Number:
		n.text = v.String()
	case bool:
		n.text = fmt.Sprint(v)
	case nil:
		return node{}, n.errorf("has no value")
	case json.Delim:
		n.kind = kindList
		if v == '{' {
			n.kind = kindObject
		}
		for dec.More() {
			value := node{at: n.at, path: fmt.Sprintf("%s[%d]", n.path, len(n.list))}
			name := ""
			if n.kind == kindObject {
				key, err := dec.Token()
				if err != nil {
					return node{}, n.errorf("is not JSON: %w", err)
				}
				name = key.(string)
				value.path = n.child(name)
			}
			if value, err = fromJSON(dec, value, depth-1); err != nil {
				return node{}, err
			}
			if n.kind == kindList {
				n.list = append(n.list, value)
			} else if err := n.add(name, value); err != nil {
				return node{}, err
			}
		}
		if _, err := dec.Token(); err != nil {
			return node{}, n.errorf("is not JSON: %w", err)
		}
	}
	return n, nil
}
