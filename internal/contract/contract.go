// Package contract holds what goes over HTTP to an OpenAPI document, for tests: each request that was accepted, and each
// answer, its status, headers and body.
package contract

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
)

// Contract is a document, ready to hold messages to it.
type Contract struct {
	doc    *openapi3.T
	router routers.Router
}

// Operation is one of the document's.
type Operation struct {
	ID     string
	Method string
	Path   string // with the server's prefix and with {parameters}
	Body   bool   // it takes one
	Query  bool   // it has query parameters
}

// Parse reads a document and checks that it is one, its examples and defaults included.
func Parse(document []byte) (*Contract, error) {
	doc, err := openapi3.NewLoader().LoadFromData(document)
	if err != nil {
		return nil, fmt.Errorf("read the document: %w", err)
	}
	if err := doc.Validate(context.Background(), openapi3.EnableExamplesValidation(), openapi3.EnableSchemaFormatValidation()); err != nil {
		return nil, fmt.Errorf("check the document: %w", err)
	}
	// A client must bear fields that it doesn't know, so the document lets answers have more than it says. Here what it
	// doesn't say is a mistake.
	for _, schema := range doc.Components.Schemas {
		closeObjects(schema)
	}
	router, err := gorillamux.NewRouter(doc)
	if err != nil {
		return nil, fmt.Errorf("read the document's paths: %w", err)
	}
	return &Contract{doc: doc, router: router}, nil
}

func closeObjects(ref *openapi3.SchemaRef) {
	if ref == nil || ref.Ref != "" {
		return // where it is defined, its turn comes
	}
	schema := ref.Value
	if schema.AdditionalProperties.Has == nil && schema.AdditionalProperties.Schema == nil && len(schema.Properties) > 0 {
		no := false
		schema.AdditionalProperties.Has = &no
	}
	for _, property := range schema.Properties {
		closeObjects(property)
	}
	closeObjects(schema.Items)
}

// Operations returns all of the document, by path and method.
func (c *Contract) Operations() []Operation {
	var list []Operation
	for path, item := range c.doc.Paths.Map() {
		for method, o := range item.Operations() {
			has := func(p *openapi3.ParameterRef) bool { return p.Value.In == openapi3.ParameterInQuery }
			list = append(list, Operation{
				ID: o.OperationID, Method: method, Path: c.doc.Servers[0].URL + path, Body: o.RequestBody != nil,
				Query: slices.ContainsFunc(o.Parameters, has) || slices.ContainsFunc(item.Parameters, has),
			})
		}
	}
	slices.SortFunc(list, func(a, b Operation) int { return strings.Compare(a.Path+" "+a.Method, b.Path+" "+b.Method) })
	return list
}

// Defaults returns what an object of the named schema has where its maker says nothing.
func (c *Contract) Defaults(schema string) map[string]any {
	defaults := make(map[string]any)
	for name, property := range c.doc.Components.Schemas[schema].Value.Properties {
		if property.Value.Default != nil {
			defaults[name] = property.Value.Default
		}
	}
	return defaults
}

// Exchange is a request and what it was answered.
type Exchange struct {
	Operation string // its id; "" if the document has none for the request
	Status    int
}

// Transport passes requests on and holds each exchange to the document. It reports what doesn't fit, and nothing about paths
// that the document doesn't have. The body of an answer that isn't JSON is left to the caller.
func (c *Contract) Transport(base http.RoundTripper, seen func(Exchange, error)) http.RoundTripper {
	return transport{c, base, seen}
}

type transport struct {
	contract *Contract
	base     http.RoundTripper
	seen     func(Exchange, error)
}

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	var sent []byte
	if r.Body != nil {
		var err error
		if sent, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
		_ = r.Body.Close()
	}
	r = r.Clone(r.Context())
	if r.Body != nil {
		r.Body = io.NopCloser(bytes.NewReader(sent))
	}
	response, err := t.base.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	var got []byte
	if isJSON(response.Header) || response.ContentLength >= 0 {
		if got, err = io.ReadAll(response.Body); err != nil {
			return nil, err
		}
		_ = response.Body.Close()
		response.Body = io.NopCloser(bytes.NewReader(got))
	}
	exchange, err := t.contract.check(r, sent, response, got)
	if err != nil {
		err = fmt.Errorf("%s %s = %d: %w", r.Method, r.URL.RequestURI(), response.StatusCode, err)
	}
	t.seen(exchange, err)
	return response, nil
}

func isJSON(header http.Header) bool {
	kind, _, _ := mime.ParseMediaType(header.Get("Content-Type"))
	return kind == "application/json" || strings.HasSuffix(kind, "+json")
}

// check holds an exchange to the document.
func (c *Contract) check(r *http.Request, sent []byte, response *http.Response, got []byte) (Exchange, error) {
	// The document's server is a path; the host is the test's.
	asked := r.Clone(r.Context())
	asked.URL = &url.URL{Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: r.URL.RawQuery}
	asked.Body = io.NopCloser(bytes.NewReader(sent))
	route, parameters, err := c.router.FindRoute(asked)
	if err != nil {
		return Exchange{Status: response.StatusCode}, nil //nolint:nilerr // the document says nothing about it
	}
	exchange := Exchange{route.Operation.OperationID, response.StatusCode}
	input := &openapi3filter.RequestValidationInput{
		Request: asked, PathParams: parameters, Route: route,
		Options: &openapi3filter.Options{
			AuthenticationFunc: bearer, RejectWhenRequestBodyNotSpecified: true, SkipSettingDefaults: true, IncludeResponseStatus: true,
		},
	}
	var wrong []error
	if response.StatusCode < 300 {
		// The server accepted it, so the document must allow it. What it refuses may be refused for more than a document can say.
		if err := openapi3filter.ValidateRequest(r.Context(), input); err != nil {
			wrong = append(wrong, fmt.Errorf("the request was accepted: %w", err))
		}
	}
	answer := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: input, Status: response.StatusCode, Header: response.Header, Options: input.Options,
	}
	said := route.Operation.Responses.Status(response.StatusCode)
	if said == nil {
		said = route.Operation.Responses.Default()
	}
	if kind := response.Header.Get("Content-Type"); kind != "" && !isJSON(response.Header) {
		answer.Options = &openapi3filter.Options{ExcludeResponseBody: true, IncludeResponseStatus: true}
		if said != nil && said.Value.Content.Get(kind) == nil {
			wrong = append(wrong, fmt.Errorf("the answer's Content-Type is %q, which the document doesn't have", kind))
		}
	}
	if err := openapi3filter.ValidateResponse(r.Context(), answer.SetBodyBytes(got)); err != nil {
		wrong = append(wrong, fmt.Errorf("the answer: %w", err))
	}
	if kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type")); kind == "application/problem+json" {
		var problem struct{ Status int }
		if err := json.Unmarshal(got, &problem); err != nil || problem.Status != response.StatusCode {
			wrong = append(wrong, fmt.Errorf("the problem says status %d", problem.Status)) // RFC 9457 section 3.1.2
		}
	}
	if response.StatusCode == http.StatusUnauthorized && response.Header.Get("WWW-Authenticate") == "" {
		wrong = append(wrong, errors.New("the answer doesn't say how to authenticate")) // RFC 9110 section 15.5.2
	}
	if said != nil && len(said.Value.Content) == 0 && len(got) > 0 {
		wrong = append(wrong, fmt.Errorf("the answer has a body of %d bytes, and the document none", len(got)))
	}
	return exchange, errors.Join(wrong...)
}

// bearer asks for what the document says about tokens; whether one is valid is the server's business.
func bearer(_ context.Context, in *openapi3filter.AuthenticationInput) error {
	if in.SecurityScheme.Type != "http" || in.SecurityScheme.Scheme != "bearer" {
		return fmt.Errorf("unknown security scheme %s", in.SecuritySchemeName)
	}
	scheme, token, _ := strings.Cut(in.RequestValidationInput.Request.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return errors.New("there is no bearer token")
	}
	return nil
}
