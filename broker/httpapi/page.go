package httpapi

import (
	"embed"
	"fmt"
	"hash/crc32"
	"net/http"
	"path"
	"time"
)

// The live page is three files that use nothing but the API; there is no step to build them.
//
//go:embed page
var pageFiles embed.FS

// pagePolicy keeps the page to itself: what streams hold may have been written by anybody, and must not run or load
// anything even if the page showed it as markup, which it does not.
const pagePolicy = "default-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// pageTypes are the media types of the page's files.
var pageTypes = map[string]string{".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}

// pageFile answers GET with a file of the page.
func pageFile(name string) func(*Server, *exchange) error {
	body, err := pageFiles.ReadFile("page/" + name)
	if err != nil {
		panic(err) // it is embedded
	}
	tag := fmt.Sprintf(`W/"%08x"`, crc32.Checksum(body, castagnoli))
	return func(_ *Server, x *exchange) error {
		if err := newQuery(x.r).done(); err != nil {
			return err
		}
		h := x.Header()
		h.Set("ETag", tag)
		h.Set("Cache-Control", "no-cache")
		h.Set("Content-Security-Policy", pagePolicy)
		h.Set("Referrer-Policy", "no-referrer")
		if matchesTag(x.r.Header.Values("If-None-Match"), tag) {
			x.WriteHeader(http.StatusNotModified)
			return nil
		}
		h.Set("Content-Type", pageTypes[path.Ext(name)])
		return x.writeBody(http.StatusOK, body)
	}
}

// statistics are the numbers that the page makes rates of.
type statistics struct {
	Time             int64  `json:"time"`
	Appends          uint64 `json:"appends"`
	AppendedBytes    int64  `json:"appended_bytes"`
	ReadBytes        int64  `json:"read_bytes"`
	UnflushedAppends int64  `json:"unflushed_appends"`
	Followers        int64  `json:"followers"`
}

// stats answers GET on the broker's numbers.
func (s *Server) stats(x *exchange) error {
	if err := newQuery(x.r).done(); err != nil {
		return err
	}
	now := s.store.Stats()
	return x.writeJSON(http.StatusOK, &statistics{
		Time:             time.Now().UnixMilli(),
		Appends:          now.AppendNumber,
		AppendedBytes:    now.AppendedBytes,
		ReadBytes:        now.ReadBytes,
		UnflushedAppends: now.Unflushed,
		Followers:        now.Watching,
	})
}
