// Package migrations holds the numbered SQL that builds inboxd's schema, for goose. They go forward only:
// the release before must still run on the new schema.
package migrations

import "embed"

// FS holds the files.
//
//go:embed *.sql
var FS embed.FS
