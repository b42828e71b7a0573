package httpapi

import (
	"fmt"
	"hash/crc32"
	"net/http"

	"github.com/brookletmq/brooklet/docs"
)

var contractTag = fmt.Sprintf(`W/"%08x"`, crc32.Checksum(docs.OpenAPI, castagnoli))

// contract answers GET on the file that describes this API.
func (s *Server) contract(x *exchange) error {
	if err := newQuery(x.r).done(); err != nil {
		return err
	}
	h := x.Header()
	h.Set("ETag", contractTag)
	h.Set("Cache-Control", "no-cache")
	if matchesTag(x.r.Header.Values("If-None-Match"), contractTag) {
		x.WriteHeader(http.StatusNotModified)
		return nil
	}
	h.Set("Content-Type", "application/yaml")
	return x.writeBody(http.StatusOK, docs.OpenAPI)
}
