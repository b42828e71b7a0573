package broker

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/pprof"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// errDraining is why a broker that shuts down is not ready.
var errDraining = errors.New("draining: the broker is shutting down")

// Ready returns nil while the broker can serve requests, and otherwise why it cannot: it is draining, or its store has
// stopped taking writes.
func (b *Broker) Ready() error {
	select {
	case <-b.draining:
		return errDraining
	default:
	}
	if err := b.store.Err(); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	return nil
}

// NewAdminHandler serves the endpoints for operators:
//
//	/healthz   200 as long as the process answers
//	/readyz    200 when the broker serves requests, else 503 with the reason
//	/metrics   the metrics of gatherer, in Prometheus' format
//	/debug/pprof/  profiles of the process, as net/http/pprof serves them
//
// ready is asked at each probe; it must be quick. It should return an error until there is a broker, and then what
// [Broker.Ready] says.
func NewAdminHandler(ready func() error, gatherer prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			writeText(w, http.StatusServiceUnavailable, err.Error())
			return
		}
		writeText(w, http.StatusOK, "ready")
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return mux
}

func writeText(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	fmt.Fprintln(w, text)
}
