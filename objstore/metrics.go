package objstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// failureKinds are the values of the label "kind", most specific first.
var failureKinds = []struct {
	kind string
	errs []error
}{
	{"canceled", []error{context.Canceled, context.DeadlineExceeded}},
	{"exists", []error{ErrExists}},
	{"not_found", []error{ErrNotFound}},
	{"truncated", []error{ErrTruncated}},
	{"throttled", []error{ErrThrottled}},
	{"timeout", []error{ErrTimeout}},
	{"denied", []error{ErrDenied, ErrNoBucket}},
	{"rejected", []error{ErrRejected, ErrUnsupported, ErrName}},
	{"other", nil},
}

func failureKind(err error) string {
	for _, k := range failureKinds {
		for _, target := range k.errs {
			if errors.Is(err, target) {
				return k.kind
			}
		}
	}
	return "other"
}

// metrics of one bucket. Every label value exists from the start, so that a rate
// over the first failure is seen, and the maps are only read after newMetrics.
type metrics struct {
	ops    map[Op]*opMetrics
	listed prometheus.Counter
}

type opMetrics struct {
	calls    prometheus.Counter
	retries  prometheus.Counter
	bytes    prometheus.Counter
	duration prometheus.Observer
	failures map[string]prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	opts := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: "brooklet", Subsystem: "objstore", Name: name, Help: help}
	}
	calls := prometheus.NewCounterVec(opts("operations_total", "Calls of the bucket that ended, retries not counted."), []string{"op"})
	retries := prometheus.NewCounterVec(opts("retries_total", "Further attempts after a failed one."), []string{"op"})
	failures := prometheus.NewCounterVec(opts("failures_total", "Calls that ended with an error, after all attempts."), []string{"op", "kind"})
	bytes := prometheus.NewCounterVec(opts("transferred_bytes_total", "Bytes of objects moved by calls that succeeded."), []string{"op"})
	duration := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "brooklet", Subsystem: "objstore", Name: "operation_duration_seconds",
		Help:    "Time of a call with all its attempts.",
		Buckets: prometheus.ExponentialBuckets(0.0005, 2.5, 14), // 0.5 ms to 75 s
	}, []string{"op"})

	// Stores answer a listing in pages, and charge for each.
	listed := prometheus.NewCounter(prometheus.CounterOpts(opts("listed_objects_total", "Objects that listings delivered.")))

	if reg != nil {
		for _, c := range []prometheus.Collector{calls, retries, failures, bytes, duration, listed} {
			if err := reg.Register(c); err != nil {
				return nil, fmt.Errorf("objstore: register metrics (one bucket per registerer): %w", err)
			}
		}
	}

	m := &metrics{ops: make(map[Op]*opMetrics, len(allOps)), listed: listed}
	for _, op := range allOps {
		om := &opMetrics{
			calls:    calls.WithLabelValues(string(op)),
			retries:  retries.WithLabelValues(string(op)),
			bytes:    bytes.WithLabelValues(string(op)),
			duration: duration.WithLabelValues(string(op)),
			failures: make(map[string]prometheus.Counter, len(failureKinds)),
		}
		for _, k := range failureKinds {
			om.failures[k.kind] = failures.WithLabelValues(string(op), k.kind)
		}
		m.ops[op] = om
	}
	return m, nil
}

// observe records the end of a call that began at start and moved n bytes.
func (m *opMetrics) observe(start time.Time, n int, err error) {
	m.calls.Inc()
	m.duration.Observe(time.Since(start).Seconds())
	if err != nil {
		m.failures[failureKind(err)].Inc()
		return
	}
	m.bytes.Add(float64(n))
}
