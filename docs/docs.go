// Package docs holds the pages for users, and those of them that the program itself serves.
package docs

import _ "embed"

// OpenAPI is the contract of the stream API over HTTP (OpenAPI 3.1, YAML).
//
//go:embed openapi.yaml
var OpenAPI []byte
