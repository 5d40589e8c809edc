package providers

import (
	"strings"
	"testing"
	"testing/fstest"
)

// A sheet with mistakes is refused with all of them, each with file, line and key.
func TestLoadMistakes(t *testing.T) {
	const fine = "name: fine\nabout: x\nsignature: {scheme: none}\n"
	for _, tt := range []struct {
		name, sheet string
		want        []string
	}{
		{"unknown keys", "name: acme\nabout: x\nsignature:\n  scheme: hmac\n  algoritm: sha256\nmesage_id: x\n", []string{
			"acme.yaml:5: signature.algoritm: unknown key; known are algorithm, ", "acme.yaml:6: mesage_id: unknown key",
		}},
		{"an unknown key of a variant", "name: acme\nabout: x\nvariants:\n  v1:\n    signed: \"{body}\"\n    sighature: {}\n", []string{
			"acme.yaml:6: variants.v1.sighature: unknown key",
		}},
		{"an unknown word", "name: acme\nabout: x\nsignature:\n  scheme: hmac\n  algorithm: md5\n", []string{
			"acme.yaml:5: signature.algorithm: must be one of sha1, sha256, sha512",
		}},
		{"a place that isn't one", "name: acme\nabout: x\nsignature: {in: \"cookie:x\"}\nsigned: \"{json:id}{body}\"\n", []string{
			"acme.yaml:3: signature.in: a place of kind header, query is expected", "acme.yaml:4: signed: {json:id}: a place of kind ",
		}},
		{"a template that isn't one", "name: acme\nabout: x\nsigned: \"{body\"\nmessage_id: \"json:id}\"\n", []string{
			"acme.yaml:3: signed: has a { without its }", "acme.yaml:4: message_id: has a } without its {",
		}},
		{"an id that all messages share", "name: acme\nabout: x\nmessage_id: [\"{json:id}\", \"webhook\"]\n", []string{
			"acme.yaml:3: message_id: must contain a place",
		}},
		{"an id of parts without a separator", "name: acme\nabout: x\nmessage_id: \"{json:a}{json:b}\"\n", []string{
			"acme.yaml:3: message_id: needs a text between two places",
		}},
		{"an id of the method", "name: acme\nabout: x\nmessage_id: \"{method}\"\n", []string{
			"acme.yaml:3: message_id: {method}: a place of kind ",
		}},
		{"a key twice", "name: acme\nabout: x\nabout: y\n", []string{"acme.yaml: ", "already defined"}},
		{"a key without a value", "name: acme\nabout:\n", []string{"acme.yaml:2: about: has no value"}},
		{"another file's name", "name: other\nabout: x\n", []string{"acme.yaml:1: name must be that of the file"}},
		{"an alias", "name: acme\nabout: &a x\nsigned: *a\n", []string{"acme.yaml:2: about: Anchor is not used in sheets"}},
		{"an unknown default", "name: acme\nabout: x\nvariants: {v1: {}}\ndefault: v2\n", []string{"acme.yaml:1: default names no variant"}},
		{"no check under another name", "name: acme\nabout: x\nsignature: {scheme: none}\n", []string{"only the sheet named none verifies nothing"}},
		{"an answer that isn't a success", "name: acme\nabout: x\nanswer: {status: 302}\n", []string{"acme.yaml:3: answer.status: must be a status from 200 to 299"}},
		{"nothing", "", []string{"acme.yaml: one YAML document is expected"}},
		{"a list", "- a\n", []string{"acme.yaml:1: is a list; an object is expected"}},
		{"not YAML", "a: [\n", []string{"acme.yaml: "}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := load(fstest.MapFS{
				"sheets/acme.yaml": {Data: []byte(tt.sheet)},
				"sheets/none.yaml": {Data: []byte(strings.ReplaceAll(fine, "fine", "none"))},
			}, "sheets")
			if err == nil {
				t.Fatal("load accepted it")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("load = %v\nwant %s", err, want)
				}
			}
		})
	}
}
