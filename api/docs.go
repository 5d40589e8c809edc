package api

import (
	"net/http"
	"sync"

	"github.com/inboxd/inboxd"
	"github.com/inboxd/inboxd/internal/docpage"
)

// docs is openapi.yaml as a page.
var docs = sync.OnceValues(func() (*docpage.Page, error) {
	return docpage.New(docpage.Config{Document: inboxd.OpenAPI, Source: "/openapi.yaml", URL: "$INBOXD_URL", Token: "$INBOXD_TOKEN"})
})

func (s *server) showDocs(w http.ResponseWriter, r *http.Request) {
	page, err := docs()
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", page.Policy)
	w.Header().Set("Referrer-Policy", "no-referrer")
	_, _ = w.Write(page.HTML)
}
