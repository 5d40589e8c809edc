package docpage_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/xml"
	"errors"
	"html"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/inboxd/inboxd/internal/docpage"
)

const document = `
openapi: 3.1.0
info: {title: A <shelf>, version: "1", description: "First.\n\nSecond, with ` + "`code`" + ` & more."}
servers: [{url: /v1}]
tags: [{name: books}]
paths:
  /books/{id}:
    parameters: [{name: id, in: path, required: true, schema: {type: string, examples: ["7"]}}]
    get:
      operationId: FindBook
      tags: [books]
      summary: A book
      parameters: [{name: q, in: query, required: true, schema: {type: string, enum: ["a b", c]}}]
      responses: {"200": {description: It., content: {application/json: {schema: {$ref: "#/components/schemas/Book"}}}}, default: {$ref: "#/components/responses/Problem"}}
    put:
      operationId: PutBook
      tags: [books]
      summary: Put it
      x-role: admin
      requestBody: {required: true, content: {application/json: {schema: {$ref: "#/components/schemas/Book"}}}}
      responses: {"204": {description: Done.}}
  /shelves:
    post:
      operationId: MakeShelf
      summary: A shelf
      responses: {"204": {description: Done.}}
components:
  responses: {Problem: {description: Whatever went wrong., headers: {Retry-After: {schema: {type: integer}, description: When.}}}}
  schemas:
    Book:
      type: object
      required: [title, pages]
      properties:
        title: {type: string, minLength: 1, maxLength: 9, examples: ["It's"]}
        pages: {type: integer, minimum: 2, default: 3}
        kind: {allOf: [{$ref: "#/components/schemas/Kind"}]}
        author: {type: object, properties: {names: {type: array, maxItems: 5, items: {type: [string, "null"], maxLength: 4}}}}
        parts: {type: array, items: {type: object, properties: {n: {type: integer}}}}
    Kind: {type: string, enum: [novel, poem]}
`

func newPage(t *testing.T, document string) (string, *docpage.Page) {
	t.Helper()
	page, err := docpage.New(docpage.Config{Document: []byte(document), Source: "/doc.yaml", URL: "$URL", Token: "$TOKEN"})
	if err != nil {
		t.Fatal(err)
	}
	return string(page.HTML), page
}

func TestPage(t *testing.T) {
	text, _ := newPage(t, document)
	for _, want := range []string{
		`<h1>A &lt;shelf&gt;</h1>`, `<p>First.</p><p>Second, with <code>code</code> &amp; more.</p>`,
		`<article id="FindBook">`, `<li><a href="#PutBook" title="PUT /v1/books/{id}">Put it</a></li>`, `for the role <code>admin</code>`,
		`<section id="tag-other">`, `<a href="#schema-Book">Book</a> <span class="required">required</span>`,
		`<tr id="schema-Book.title"><th scope="row"><code>title</code> <span class="required">required</span></th><td>string</td>`,
		`<code>1</code> to <code>9</code> characters`, `at least <code>2</code>; default <code>3</code>`,
		`<tr id="schema-Book.kind"><th scope="row"><code>kind</code></th><td><a href="#schema-Kind">Kind</a></td>`,
		`<tr id="schema-Book.author.names">`, `array of string or null of at most <code>4</code> characters`, `at most <code>5</code> items`,
		`<tr id="schema-Book.parts[].n">`, `<p>string one of <code>novel</code>, <code>poem</code></p>`,
		`<a href="#answer-Problem">Problem</a>`, `<article id="answer-Problem">`, `Header <code>Retry-After</code> (integer): When.`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page doesn't have %s", want)
		}
	}
	var commands []string
	for _, m := range regexp.MustCompile(`(?s)<pre><code>(.*?)</code></pre>`).FindAllStringSubmatch(text, -1) {
		commands = append(commands, html.UnescapeString(m[1]))
	}
	want := []string{
		"curl -H \"Authorization: Bearer $TOKEN\" \\\n  \"$URL/v1/books/7?q=a+b\"",
		"curl -X PUT -H \"Authorization: Bearer $TOKEN\" -H 'Content-Type: application/json' \\\n  -d '{\"title\":\"It'\\''s\",\"pages\":3}' \\\n  \"$URL/v1/books/7\"",
		"curl -X POST -H \"Authorization: Bearer $TOKEN\" \\\n  \"$URL/v1/shelves\"",
	}
	if !slices.Equal(commands, want) {
		t.Errorf("the commands are\n%s\nwant\n%s", strings.Join(commands, "\n"), strings.Join(want, "\n"))
	}
}

func TestRefused(t *testing.T) {
	for name, document := range map[string]string{
		"no YAML":                    "a: [",
		"no paths":                   "openapi: 3.1.0",
		"a reference that is broken": "paths: {/a: {get: {responses: {'200': {$ref: '#/components/responses/None'}}}}}",
	} {
		if _, err := docpage.New(docpage.Config{Document: []byte(document)}); err == nil {
			t.Errorf("%s: there is a page", name)
		}
	}
}

// TestValid reads the pages as a strict parser does: elements nest and end, ids are unique, links lead somewhere within the page, and
// the policy allows the style and nothing else.
func TestValid(t *testing.T) {
	large, err := os.ReadFile("../../openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for name, document := range map[string]string{"small": document, "the operators' API": string(large)} {
		text, page := newPage(t, document)
		decoder := xml.NewDecoder(strings.NewReader(strings.TrimPrefix(text, "<!DOCTYPE html>")))
		decoder.Entity = xml.HTMLEntity
		ids, links, open, style := map[string]bool{}, []string{}, []string{}, ""
		for {
			token, err := decoder.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			switch token := token.(type) {
			case xml.StartElement:
				if slices.Contains(open, "p") && !slices.Contains([]string{"code", "a", "span"}, token.Name.Local) {
					t.Errorf("%s: <%s> within <p>", name, token.Name.Local) // HTML ends the paragraph there
				}
				open = append(open, token.Name.Local)
				for _, a := range token.Attr {
					switch a.Name.Local {
					case "id":
						if ids[a.Value] || strings.ContainsAny(a.Value, " \t\n") {
							t.Errorf("%s: the id %q isn't one, or is there twice", name, a.Value)
						}
						ids[a.Value] = true
					case "href":
						links = append(links, a.Value)
					case "src", "style", "onclick", "action":
						t.Errorf("%s: <%s %s>", name, token.Name.Local, a.Name.Local)
					}
				}
			case xml.EndElement:
				open = open[:len(open)-1]
			case xml.CharData:
				if slices.Contains(open, "style") {
					style += string(token)
				}
			}
		}
		for _, link := range links {
			if id, ok := strings.CutPrefix(link, "#"); !(ok && ids[id]) && link != "/doc.yaml" {
				t.Errorf("%s: the link %s leads nowhere in the page", name, link)
			}
		}
		sum := sha256.Sum256([]byte(style))
		if want := "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "';"; style == "" || !strings.HasPrefix(page.Policy, want) {
			t.Errorf("%s: the policy is %s, want %s", name, page.Policy, want)
		}
		for _, m := range regexp.MustCompile(`-d (&#39;.*?&#39;) \\`).FindAllStringSubmatch(text, -1) {
			if body := strings.Trim(strings.ReplaceAll(html.UnescapeString(m[1]), `'\''`, "'"), "'"); !json.Valid([]byte(body)) {
				t.Errorf("%s: an example isn't JSON: %s", name, body)
			}
		}
	}
}
