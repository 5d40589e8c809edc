package contract_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/inboxd/inboxd/internal/contract"
)

const document = `
openapi: 3.1.0
info: {title: shelf, version: "1"}
servers: [{url: /v1}]
security: [{token: []}]
paths:
  /books/{id}:
    parameters: [{name: id, in: path, required: true, schema: {type: string}}]
    put:
      operationId: PutBook
      parameters: [{name: copies, in: query, schema: {type: integer, maximum: 3}, x-oapi-codegen-extra-tags: {validate: "max=4"}}]
      requestBody:
        required: true
        content: {application/json: {schema: {$ref: "#/components/schemas/Book"}}}
      responses:
        "200": {description: It., content: {application/json: {schema: {$ref: "#/components/schemas/Book"}}}}
        "204": {description: Nothing.}
        "404": {description: None., content: {application/problem+json: {schema: {type: object}}}}
components:
  securitySchemes: {token: {type: http, scheme: bearer}}
  schemas:
    Book:
      type: object
      required: [title]
      properties:
        title: {type: string, maxLength: 9}
        printed: {type: string, format: date-time}
        author: {$ref: "#/components/schemas/Author"}
    Author: {type: object, properties: {name: {type: string}}}
`

// TestTransport: each exchange has at most one mistake, and it is found.
func TestTransport(t *testing.T) {
	c, err := contract.Parse([]byte(document))
	if err != nil {
		t.Fatal(err)
	}
	var kind, text string
	var status int
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}))
	defer server.Close()
	for _, test := range []struct {
		name, query, sent string
		status            int
		kind, text        string
		want              string // part of what is reported
	}{
		{"right", "?copies=1", `{"title": "Emma"}`, 200, "application/json", `{"title": "Emma", "author": {"name": "Austen"}, "printed": "1815-12-23T00:00:00Z"}`, ""},
		{"nothing", "", `{"title": "Emma"}`, 204, "", "", ""},
		{"refused without need", "", `{"title": "Emma"}`, 404, "application/problem+json", `{"status": 404}`, ""},
		{"accepted against the document", "", `{"title": 1}`, 200, "application/json", `{"title": "Emma"}`, "the request was accepted"},
		{"accepted with a parameter against the document", "?copies=4", `{"title": "Emma"}`, 200, "application/json", `{"title": "Emma"}`, "the request was accepted"},
		{"a field is missing", "", `{"title": "Emma"}`, 200, "application/json", `{}`, "the answer"},
		{"a field that isn't told", "", `{"title": "Emma"}`, 200, "application/json", `{"title": "Emma", "year": 1815}`, "the answer"},
		{"a field within that isn't told", "", `{"title": "Emma"}`, 200, "application/json", `{"title": "Emma", "author": {"age": 7}}`, "the answer"},
		{"no time", "", `{"title": "Emma"}`, 200, "application/json", `{"title": "Emma", "printed": "long ago"}`, "the answer"},
		{"too long", "", `{"title": "Emma"}`, 200, "application/json", `{"title": "Mansfield Park"}`, "the answer"},
		{"another status", "", `{"title": "Emma"}`, 201, "application/json", `{"title": "Emma"}`, "status is not supported"},
		{"another type", "", `{"title": "Emma"}`, 200, "text/html", `{"title": "Emma"}`, "text/html"},
		{"no JSON", "", `{"title": "Emma"}`, 200, "application/json", `Emma`, "the answer"},
		{"a problem of another status", "", `{"title": "Emma"}`, 404, "application/problem+json", `{"status": 400}`, "status 400"},
	} {
		kind, text, status = test.kind, test.text, test.status
		var found error
		var seen contract.Exchange
		client := &http.Client{Transport: c.Transport(http.DefaultTransport, func(e contract.Exchange, err error) { seen, found = e, err })}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, server.URL+"/v1/books/1"+test.query, strings.NewReader(test.sent))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer token")
		request.Header.Set("Content-Type", "application/json")
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil || string(got) != test.text || seen != (contract.Exchange{Operation: "PutBook", Status: test.status}) {
			t.Errorf("%s: the caller got %q, %v; the exchange is %+v", test.name, got, err, seen)
		}
		if (found == nil) != (test.want == "") || found != nil && !strings.Contains(found.Error(), test.want) {
			t.Errorf("%s: reported %v, want %q", test.name, found, test.want)
		}
	}
}

func TestBadRequests(t *testing.T) {
	c, err := contract.Parse([]byte(document))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, bad := range c.BadRequests(c.Operations()[0], 100) {
		names = append(names, bad.Name)
		if bad.Name == "a body over the limit" && len(bad.Body) != 101 {
			t.Errorf("the body over the limit has %d bytes, want 101", len(bad.Body))
		}
	}
	for _, want := range []string{"copies is too much", "copies twice", "no body", "title is missing", "title is too long", "title is 7", "author is x"} {
		if !slices.Contains(names, want) {
			t.Errorf("there is no request %q among %q", want, names)
		}
	}
	if untold := c.Untold(); len(untold) != 1 || !strings.Contains(untold[0], "max=4") {
		t.Errorf("untold are %q", untold)
	}
}
