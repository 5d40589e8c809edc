// Package api is the operators' JSON API: sources, handlers, messages and deliveries. openapi.yaml is its
// contract; routes, request and response structs are generated from it into gen.go.
package api

//go:generate go tool -modfile=../tools/go.mod oapi-codegen -config oapi-codegen.yaml ../openapi.yaml
