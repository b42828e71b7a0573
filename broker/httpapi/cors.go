package httpapi

import (
	"net/http"
	"slices"
	"strings"
)

// exposedHeaders are those of replies that web pages of other origins may read.
var exposedHeaders = strings.Join([]string{
	headerStreamID, headerStartOffset, headerEndOffset, headerNextOffset, headerClosed, headerRecord,
	"ETag", "Location", "Retry-After", "Allow",
}, ", ")

// allowedHeaders are those of requests that web pages of other origins may send.
var allowedHeaders = strings.Join([]string{
	"Accept", "Authorization", "Content-Encoding", "Content-Type", "If-Match", "If-None-Match",
	headerLastEventID, headerProducerID, headerProducerEpoch, headerProducerSeq,
}, ", ")

// preflightAge is how long browsers remember what OPTIONS says, in seconds; most take two hours at most.
const preflightAge = "7200"

// allowOrigin lets web pages of allowed origins read the reply, also if it is an error. Nothing here knows cookies, so
// credentials are never allowed.
func (s *Server) allowOrigin(x *exchange) {
	h := x.Header()
	switch origin := x.r.Header.Get("Origin"); {
	case slices.Contains(s.opts.AllowedOrigins, "*"):
		h.Set("Access-Control-Allow-Origin", "*")
	case len(s.opts.AllowedOrigins) == 0:
		return
	case origin != "" && slices.Contains(s.opts.AllowedOrigins, origin):
		h.Set("Access-Control-Allow-Origin", origin)
		h.Add("Vary", "Origin")
	default:
		h.Add("Vary", "Origin")
		return
	}
	h.Set("Access-Control-Expose-Headers", exposedHeaders)
}

// options answers OPTIONS, which browsers ask before they send what a form could not.
func (s *Server) options(x *exchange, methods []string) {
	x.route = "options"
	h := x.Header()
	h.Set("Allow", allow(methods))
	if x.r.Header.Get("Access-Control-Request-Method") != "" && h.Get("Access-Control-Allow-Origin") != "" {
		h.Set("Access-Control-Allow-Methods", allow(methods))
		h.Set("Access-Control-Allow-Headers", allowedHeaders)
		h.Set("Access-Control-Max-Age", preflightAge)
	}
	x.WriteHeader(http.StatusNoContent)
}
