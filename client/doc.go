// Package client calls the operators' API. Types and requests are generated from openapi.yaml.
package client

//go:generate go tool -modfile=../tools/go.mod oapi-codegen -config oapi-codegen.yaml ../openapi.yaml
