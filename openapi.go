// Package inboxd holds what stands at the top of the repository and has to be in the program.
package inboxd

import _ "embed"

// OpenAPI is openapi.yaml, the contract of the operators' API.
//
//go:embed openapi.yaml
var OpenAPI []byte
