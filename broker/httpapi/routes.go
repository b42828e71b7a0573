package httpapi

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
)

// streamsPath is the address of all streams; a stream's own is its name behind it.
const streamsPath = "/v1/streams"

// A route is a method of an address.
type route struct {
	method string
	// path is an address as docs/openapi.yaml writes it. One that ends in {name} is a prefix.
	path string
	// name identifies the route in metrics and logs; it is the operationId of docs/openapi.yaml.
	name   string
	handle func(*Server, *exchange) error
}

// routes are all routes.
var routes = []route{
	{http.MethodGet, streamsPath, "listStreams", (*Server).list},
	{http.MethodGet, streamsPath + "/{name}", "readStream", (*Server).read},
	{http.MethodHead, streamsPath + "/{name}", "headStream", (*Server).head},
	{http.MethodPut, streamsPath + "/{name}", "createStream", (*Server).create},
	{http.MethodPost, streamsPath + "/{name}", "appendToStream", (*Server).append},
	{http.MethodPatch, streamsPath + "/{name}", "changeStream", (*Server).change},
	{http.MethodDelete, streamsPath + "/{name}", "deleteStream", (*Server).delete},
	{http.MethodGet, "/v1/openapi.yaml", "getContract", (*Server).contract},
	{http.MethodGet, "/v1/stats", "getStats", (*Server).stats},
	{http.MethodGet, "/", "getPage", pageFile("index.html")},
	{http.MethodGet, "/page/page.css", "getPageStyle", pageFile("page.css")},
	{http.MethodGet, "/page/page.js", "getPageScript", pageFile("page.js")},
}

// matches tells whether the address of a request is that of the route.
func (r *route) matches(path string) bool {
	prefix, ok := strings.CutSuffix(r.path, "{name}")
	if !ok {
		return path == r.path
	}
	return strings.HasPrefix(path, prefix) && len(path) > len(prefix)
}

// files are addresses with a short reply of their own, of which HEAD has the head; net/http leaves the body out.
var files = []string{"/", "/page/page.css", "/page/page.js", "/v1/openapi.yaml", "/v1/stats"}

// findRoute returns the route of a request, or the methods that its address has.
func findRoute(method, path string) (found *route, methods []string) {
	for _, list := range [][]route{routes, durableRoutes} {
		for i := range list {
			r := &list[i]
			if !r.matches(path) {
				continue
			}
			if r.method == method || method == http.MethodHead && r.method == http.MethodGet && slices.Contains(files, r.path) {
				return r, nil
			}
			methods = append(methods, r.method)
		}
	}
	return nil, methods
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := newExchange(s, w, r)
	found, methods := findRoute(r.Method, r.URL.Path)
	x.route = "none"
	if found != nil {
		x.route = found.name
	}
	s.m.inFlight.Inc()
	defer s.m.inFlight.Dec()
	defer s.finish(x)
	s.allowOrigin(x)
	err := s.checkOrigin(x)
	switch {
	case err != nil:
	case found != nil:
		err = found.handle(s, x)
	case methods == nil:
		err = noRoute.new("%q is not an address of this API: streams are at %s/<name>, and at %s<name>", r.URL.Path, streamsPath, durablePath)
	case r.Method == http.MethodOptions:
		s.options(x, methods)
	default:
		err = wrongMethod.new("%s has the methods %s", r.URL.Path, strings.Join(methods, ", ")).withHeader("Allow", allow(methods))
	}
	if err != nil {
		x.fail(err)
	}
}

func allow(methods []string) string {
	return strings.Join(append(slices.Clone(methods), http.MethodOptions), ", ")
}

// finish counts and logs a request that was answered.
func (s *Server) finish(x *exchange) {
	if x.r.ContentLength != 0 {
		// For what the server still reads of the body, to use the connection again.
		_ = x.rc.SetReadDeadline(time.Now().Add(s.opts.IOTimeout))
	}
	took := time.Since(x.began)
	status := x.status
	if status == 0 {
		status = http.StatusOK
	}
	s.m.requests.WithLabelValues(x.route, strconv.Itoa(status)).Inc()
	s.m.sent.Add(float64(x.sent))
	s.m.received.Add(float64(x.received))
	if x.live == "" {
		s.m.seconds.WithLabelValues(x.route).Observe(took.Seconds())
	}
	if ce := s.log.Check(zap.DebugLevel, "request"); ce != nil {
		ce.Write(zap.String("method", x.r.Method), zap.String("path", x.r.URL.Path), zap.String("query", x.r.URL.RawQuery),
			zap.String("route", x.route), zap.Int("status", status), zap.Int64("sent", x.sent), zap.Int64("received", x.received),
			zap.Duration("took", took), zap.String("client", x.r.RemoteAddr), zap.NamedError("problem", x.problem))
	}
}
