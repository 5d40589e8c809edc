// Package docpage makes a page for people of an OpenAPI document. It is plain HTML with its own style: it needs no script and
// fetches nothing.
package docpage

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"strings"
)

// Page is a page and the Content-Security-Policy that is enough for it.
type Page struct {
	HTML   []byte
	Policy string
}

// Config is what the document doesn't know.
type Config struct {
	Document []byte
	Source   string // where the document is served
	// URL and Token stand in the examples for curl, as shell variables mostly.
	URL, Token string
}

var (
	//go:embed page.html
	pageHTML string
	//go:embed page.css
	pageCSS string

	page = template.Must(template.New("page").Funcs(template.FuncMap{"prose": prose}).Parse(pageHTML))
)

// New makes the page.
func New(cfg Config) (*Page, error) {
	d, err := readDocument(cfg.Document)
	if err != nil {
		return nil, fmt.Errorf("read the OpenAPI document: %w", err)
	}
	view, err := d.view(cfg)
	if err != nil {
		return nil, fmt.Errorf("make a page of the OpenAPI document: %w", err)
	}
	view.Style = template.CSS(pageCSS) //nolint:gosec // our own file
	var html bytes.Buffer
	if err := page.Execute(&html, view); err != nil {
		return nil, fmt.Errorf("make a page of the OpenAPI document: %w", err)
	}
	sum := sha256.Sum256([]byte(pageCSS))
	return &Page{
		HTML: html.Bytes(),
		Policy: "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
			"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
	}, nil
}

// prose writes a description's paragraphs and `code`; nothing else of Markdown is used.
func prose(text string) template.HTML {
	var html strings.Builder
	for paragraph := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		if paragraph != "" {
			html.WriteString("<p>" + string(inline(paragraph)) + "</p>")
		}
	}
	return template.HTML(html.String()) //nolint:gosec // inline escapes
}

// inline writes one paragraph without its frame.
func inline(text string) template.HTML {
	var html strings.Builder
	for i, part := range strings.Split(strings.TrimSpace(text), "`") {
		part = template.HTMLEscapeString(part)
		if i%2 == 1 {
			part = "<code>" + part + "</code>"
		}
		html.WriteString(part)
	}
	return template.HTML(html.String()) //nolint:gosec // each part is escaped
}
