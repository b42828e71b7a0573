package httpapi

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// exposedHeaders are those of replies that web pages of other origins may read.
var exposedHeaders = strings.Join([]string{
	headerStreamID, headerStartOffset, headerEndOffset, headerNextOffset, headerClosed, headerRecord,
	"ETag", "Location", "Retry-After", "Allow",
	headerDurableNext, headerDurableUpToDate, headerDurableClosed, headerDurableCursor, headerDurableTTL, headerDurableExpires,
	headerDurableEncoding, headerProducerEpoch, headerProducerSeq, headerProducerExpects, headerProducerGot,
}, ", ")

// allowedHeaders are those of requests that web pages of other origins may send.
var allowedHeaders = strings.Join([]string{
	"Accept", "Authorization", "Content-Encoding", "Content-Type", "If-Match", "If-None-Match",
	headerLastEventID, headerProducerID, headerProducerEpoch, headerProducerSeq,
	headerDurableClosed, headerDurableTTL, headerDurableExpires, headerDurableSeq, headerForkedFrom, headerForkOffset, headerForkSubOffset,
}, ", ")

// preflightAge is how long browsers remember what OPTIONS says, in seconds; most take two hours at most.
const preflightAge = "7200"

// allowOrigin lets web pages of allowed origins read the reply, also if it is an error. Nothing here knows cookies, so
// credentials are never allowed.
func (s *Server) allowOrigin(x *exchange) {
	h := x.Header()
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	if slices.Contains(s.opts.AllowedOrigins, "*") {
		h.Set("Cross-Origin-Resource-Policy", "cross-origin")
	}
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

// checkOrigin refuses what web pages of other origins must not do. Without CORS a browser does not let a page read a
// reply, but sends simple requests all the same, a POST with a text body among them; those are told by Origin and
// Sec-Fetch-Site. And a page whose own name suddenly stands for a loopback address (DNS rebinding) counts as same origin
// for a browser, so at a listener for this machine only, the request must be for a name of this machine.
func (s *Server) checkOrigin(x *exchange) error {
	if slices.Contains(s.opts.AllowedOrigins, "*") {
		return nil
	}
	if err := s.foreign.Check(x.r); err != nil {
		return foreignOrigin.new("web pages of other origins may not change streams here: list the origin, which is %q, in --http-origins to allow that", x.r.Header.Get("Origin"))
	}
	if x.r.Context().Value(localOnly{}) != nil && !isLocalHost(x.r.Host) && !s.allowsHost(x.r.Host) {
		return foreignOrigin.new("this broker listens for its own machine only, and the request is for the host %q: use localhost or 127.0.0.1, or list the origin in --http-origins, such as http://%s", x.r.Host, x.r.Host)
	}
	return nil
}

// localOnly marks the context of requests that came by a listener that only this machine can reach.
type localOnly struct{}

// connContext is the base context of the requests that come by a listener.
func connContext(l net.Listener) context.Context {
	ctx := context.Background()
	if tcp, ok := l.Addr().(*net.TCPAddr); ok && tcp.IP.IsLoopback() {
		return context.WithValue(ctx, localOnly{}, true)
	}
	return ctx
}

// isLocalHost tells whether a Host header is an address, or a name that stands for this machine everywhere (RFC 6761).
func isLocalHost(host string) bool {
	name := strings.ToLower(hostName(host))
	if _, err := netip.ParseAddr(name); err == nil || name == "" {
		return true
	}
	return name == "localhost" || strings.HasSuffix(name, ".localhost")
}

// hostName is a Host header without its port and the brackets of an address.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	return strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
}

func (s *Server) allowsHost(host string) bool {
	return slices.ContainsFunc(s.opts.AllowedOrigins, func(origin string) bool {
		_, allowed, _ := strings.Cut(origin, "://")
		return strings.EqualFold(allowed, host)
	})
}

// newForeign makes the check of changes by web pages. The error is of an entry that is no origin.
func newForeign(origins []string) (*http.CrossOriginProtection, error) {
	check := http.NewCrossOriginProtection()
	for _, origin := range origins {
		if origin == "*" {
			continue
		}
		if err := check.AddTrustedOrigin(origin); err != nil {
			return nil, fmt.Errorf("httpapi: %q in AllowedOrigins is no origin, such as https://app.example.com: %w", origin, err)
		}
	}
	return check, nil
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
