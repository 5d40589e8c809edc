package providers

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// read scans doc for one path.
func read(t *testing.T, doc, path string) (value, bool) {
	t.Helper()
	steps, err := parsePath(path)
	if err != nil {
		t.Fatal(err)
	}
	var p plan
	slot := p.add(steps)
	values := make([]value, p.slots())
	ok := p.scan([]byte(doc), values)
	return values[slot], ok
}

func TestScan(t *testing.T) {
	for _, tt := range []struct {
		name, doc, path string
		text            string
		ok              bool
	}{
		{"a member", `{"id":"a"}`, "id", "a", true},
		{"a member inside", `{"x":{"id":"no"},"data":{"object":{"id":"a"}}}`, "data.object.id", "a", true},
		{"an element", `[{"id":"a"},{"id":"b"}]`, "[1].id", "b", true},
		{"an element of an element", `{"m":[[1,2],[3,4]]}`, "m[1][0]", "3", true},
		{"a name with a dot", `{"a.b":"a","a":{"b":"no"}}`, `a\.b`, "a", true},
		{"a name with an escape", "{\"\\u0069d\":\"a\"}", "id", "a", true},
		{"white space", " {\n\t\"id\" : \"a\"\r} ", "id", "a", true},
		{"escapes", `{"id":"\"\\\/\b\f\n\r\té😀"}`, "id", "\"\\/\b\f\n\r\té😀", true},
		{"a number with all its digits", `{"id":12345678901234567890.10}`, "id", "12345678901234567890.10", true},
		{"an exponent", `{"id":1E+2}`, "id", "1E+2", true},
		{"a boolean", `{"id":true}`, "id", "true", true},
		{"null", `{"id":null}`, "id", "", false},
		{"an object", `{"id":{"a":1}}`, "id", "", false},
		{"an array", `{"id":["a"]}`, "id", "", false},
		{"missing", `{"ID":"a"}`, "id", "", false},
		{"no such element", `["a"]`, "[1]", "", false},
		{"a member of an array", `["a"]`, "id", "", false},
		{"twice", `{"id":"a","id":"b"}`, "id", "", false},
		{"three times", `{"id":"a","id":"b","id":"c"}`, "id", "", false},
		{"twice, once escaped", "{\"id\":\"a\",\"i\\u0064\":\"b\"}", "id", "", false},
		{"twice, once null", `{"id":null,"id":"b"}`, "id", "", false},
		{"its parent twice", `{"data":{"id":"a"},"data":{}}`, "data.id", "", false},
		{"another twice", `{"x":1,"id":"a","x":2}`, "id", "a", true},
		{"a lone high surrogate", "{\"id\":\"\\ud83d\"}", "id", "", false},
		{"a lone low surrogate", "{\"id\":\"\\ude00\"}", "id", "", false},
		{"two high surrogates", "{\"id\":\"\\ud83d\\ud83d\"}", "id", "", false},
		{"bytes that are not UTF-8", "{\"id\":\"\xff\"}", "id", "", false},
		{"bytes that are not UTF-8, elsewhere", "{\"x\":\"\xff\\ud83d\\u0000\",\"id\":\"a\"}", "id", "a", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v, valid := read(t, tt.doc, tt.path)
			if !valid {
				t.Fatal("scan = invalid")
			}
			if text, ok := v.text(); ok != tt.ok || text != tt.text && ok {
				t.Errorf("text = %q, %v, want %q, %v", text, ok, tt.text, tt.ok)
			}
		})
	}
}

// What is not JSON gives nothing, whatever stood before the mistake.
func TestScanInvalid(t *testing.T) {
	for _, doc := range []string{
		``, ` `, `{"id":"a"`, `{"id":"a"} x`, `{"id":"a"}{}`, `{"id":"a",}`, `{"id":"a"}]`, `{"id":"a","x":[1,]}`,
		`{"id":"a","x":01}`, `{"id":"a","x":+1}`, `{"id":"a","x":.5}`, `{"id":"a","x":1.}`, `{"id":"a","x":1e}`,
		`{"id":"a","x":tru}`, `{"id":"a","x":"\x"}`, `{"id":"a","x":"\u12g4"}`, `{"id":"a","x":"\u12`, "{\"id\":\"a\",\"x\":\"\n\"}",
		`{"id":"a" "x":1}`, `{"id"}`, `{id:"a"}`, `{"id":"a",'x':1}`, "\ufeff{\"id\":\"a\"}", "{\"id\":\"a\"}\x00", `-`, `"`, `"\`,
		`{"id":"a","x":` + strings.Repeat("[", maxDepth) + strings.Repeat("]", maxDepth) + `}`,
	} {
		v, valid := read(t, doc, "id")
		if valid || v.kind != valueMissing {
			t.Errorf("scan(%.60q) = %v, %v, want nothing", doc, v.kind, valid)
		}
	}
}

// The scan takes for JSON what encoding/json takes for JSON, and reads the same text where a name is
// unique.
func FuzzScan(f *testing.F) {
	for _, doc := range []string{`{"id":"a"}`, `{"id":-1.5e3,"x":[{"id":null}]}`, "{\"id\":\"\\ud83d\\ude00\"}", `[]`, `{"id":"a"`, "{\"id\":\"\xff\"}"} {
		f.Add([]byte(doc))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		if bytes.Count(doc, []byte("["))+bytes.Count(doc, []byte("{")) > maxDepth {
			t.Skip("deeper than the scan goes")
		}
		v, valid := read(t, string(doc), "id")
		if valid != json.Valid(doc) {
			t.Fatalf("scan(%q) = %v, json.Valid = %v", doc, valid, json.Valid(doc))
		}
		text, ok := v.text()
		if !ok || v.kind != valueString {
			return
		}
		var object map[string]json.RawMessage
		if err := json.Unmarshal(doc, &object); err != nil {
			t.Fatal(err)
		}
		var want string
		if err := json.Unmarshal(object["id"], &want); err != nil || text != want {
			t.Fatalf("text of %q = %q, want %q (%v)", doc, text, want, err)
		}
	})
}

func TestElements(t *testing.T) {
	for _, tt := range []struct {
		array string
		want  []string
	}{
		{`[]`, nil},
		{`[ ]`, nil},
		{`[1]`, []string{`1`}},
		{"[ {\"a\": [1, 2]} ,\n\"x,]\"\t, null]", []string{`{"a": [1, 2]}`, `"x,]"`, `null`}},
	} {
		got := elements([]byte(tt.array))
		if len(got) != len(tt.want) {
			t.Fatalf("elements(%s) = %q, want %q", tt.array, got, tt.want)
		}
		for i := range got {
			if string(got[i]) != tt.want[i] {
				t.Errorf("elements(%s)[%d] = %s, want %s", tt.array, i, got[i], tt.want[i])
			}
		}
	}
}

func TestParsePathInvalid(t *testing.T) {
	for _, path := range []string{".", "a.", ".a", "a..b", "a[", "a[]", "a[-1]", "a[x]", "a[1]b", "[1].", "a[99999999999]"} {
		if steps, err := parsePath(path); err == nil {
			t.Errorf("parsePath(%q) = %v, want an error", path, steps)
		}
	}
}
