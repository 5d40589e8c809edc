package api_test

import (
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// TestDocs: everybody may read the page, it has each operation and each field of each schema, and its policy lets a browser
// fetch nothing.
func TestDocs(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, g.url+"/docs", nil) // no token
	if err != nil {
		t.Fatal(err)
	}
	a := do(t, request)
	policy := a.header.Get("Content-Security-Policy")
	if a.status != 200 || a.header.Get("Content-Type") != "text/html; charset=utf-8" || !strings.HasPrefix(policy, "default-src 'none'; style-src 'sha256-") {
		t.Fatalf("GET /docs = %d %v", a.status, a.header)
	}
	text, err := os.ReadFile("../openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var contract struct {
		Paths      map[string]map[string]any
		Components struct {
			Schemas map[string]struct{ Properties map[string]any }
		}
	}
	if err := yaml.Unmarshal(text, &contract); err != nil {
		t.Fatal(err)
	}
	want := []string{`id="answer-Problem"`}
	for _, item := range contract.Paths {
		for _, o := range item {
			if o, ok := o.(map[string]any); ok {
				id, _ := o["operationId"].(string)
				want = append(want, `id="`+id+`"`, `href="#`+id+`"`)
			}
		}
	}
	for name, schema := range contract.Components.Schemas {
		want = append(want, `id="schema-`+name+`"`)
		for field := range schema.Properties {
			want = append(want, `id="schema-`+name+"."+field+`"`)
		}
	}
	if len(want) < 300 {
		t.Fatalf("only %d things are looked for", len(want))
	}
	for _, part := range want {
		if strings.Count(a.text, part) == 0 {
			t.Errorf("the page has no %s", part)
		}
	}
	if found := regexp.MustCompile(`(?i)<script|<link|<img|<iframe|@import|url\(|(src|href|action)="(https?:)?//`).FindString(a.text); found != "" {
		t.Errorf("the page has %s", found)
	}
}
