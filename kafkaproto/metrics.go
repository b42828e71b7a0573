package kafkaproto

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// closeReason says why a connection ended; it is a metric label.
type closeReason string

const (
	closedByClient    closeReason = "client"             // EOF or reset
	closedFirstByte   closeReason = "first_byte_timeout" // silent since accepted
	closedIdle        closeReason = "idle"
	closedFrame       closeReason = "frame_timeout" // a request stopped half way
	closedWrite       closeReason = "write_timeout" // the peer does not read
	closedMalformed   closeReason = "malformed"
	closedUnsupported closeReason = "unsupported" // API key or version
	closedHandler     closeReason = "handler_error"
	closedPanic       closeReason = "panic"
	closedDrain       closeReason = "drain"
	closedLimit       closeReason = "connection_limit"
	closedMemory      closeReason = "request_memory" // none became free
)

var closeReasons = []closeReason{
	closedByClient, closedFirstByte, closedIdle, closedFrame, closedWrite, closedMalformed,
	closedUnsupported, closedHandler, closedPanic, closedDrain, closedLimit, closedMemory,
}

// malformedKind says what was wrong with input; it is a metric label.
type malformedKind string

const (
	malformedForeign malformedKind = "foreign_protocol"
	malformedSize    malformedKind = "size" // negative, tiny or above a limit
	malformedHeader  malformedKind = "header"
	malformedBody    malformedKind = "body"
	malformedShape   malformedKind = "shape"     // too many elements
	malformedCut     malformedKind = "truncated" // EOF inside a frame
	malformedKey     malformedKind = "unknown_key"
	malformedVersion malformedKind = "unsupported_version"
)

var malformedKinds = []malformedKind{
	malformedForeign, malformedSize, malformedHeader, malformedBody, malformedShape, malformedCut,
	malformedKey, malformedVersion,
}

// metrics are the measurements of one server. All label values are known at start,
// so the number of series is fixed.
type metrics struct {
	connections prometheus.Gauge
	memoryWaits prometheus.Counter
	accepted    prometheus.Counter
	closed      map[closeReason]prometheus.Counter
	malformed   map[malformedKind]prometheus.Counter
	api         map[int16]*apiMetrics
}

// apiMetrics are those of one API key.
type apiMetrics struct {
	requests      prometheus.Counter
	requestBytes  prometheus.Counter
	responseBytes prometheus.Counter
	duration      prometheus.Observer
}

func newMetrics(reg prometheus.Registerer, keys []int16, mem *memory) *metrics {
	f := promauto.With(reg)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Name: "brooklet_kafkaproto_" + name, Help: help}, labels)
	}
	m := &metrics{
		connections: f.NewGauge(prometheus.GaugeOpts{
			Name: "brooklet_kafkaproto_connections_open",
			Help: "Open client connections.",
		}),
		accepted:  counter("connections_accepted_total", "Client connections accepted.").WithLabelValues(),
		closed:    make(map[closeReason]prometheus.Counter),
		malformed: make(map[malformedKind]prometheus.Counter),
		api:       make(map[int16]*apiMetrics),
	}
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "brooklet_kafkaproto_request_memory_bytes",
		Help: "Memory charged to requests that are being read or not yet answered.",
	}, func() float64 { return float64(mem.requestBytes()) })
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "brooklet_kafkaproto_response_memory_bytes",
		Help: "Memory charged to responses that are not yet written, those of fetches excepted.",
	}, func() float64 { return float64(mem.responseBytes()) })
	m.memoryWaits = counter("memory_waits_total", "Times that a connection waited for request or response memory.").WithLabelValues()
	closed := counter("connections_closed_total", "Client connections closed, by reason.", "reason")
	for _, r := range closeReasons {
		m.closed[r] = closed.WithLabelValues(string(r))
	}
	malformed := counter("malformed_total", "Requests refused before a handler saw them, by kind.", "kind")
	for _, k := range malformedKinds {
		m.malformed[k] = malformed.WithLabelValues(string(k))
	}
	requests := counter("requests_total", "Requests handled, by API.", "api")
	requestBytes := counter("request_bytes_total", "Bytes of requests, by API.", "api")
	responseBytes := counter("response_bytes_total", "Bytes of responses, by API.", "api")
	duration := f.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "brooklet_kafkaproto_request_duration_seconds",
		Help:    "Time from a request being read to its response being written, waiting included, by API.",
		Buckets: prometheus.ExponentialBuckets(0.0005, 4, 10), // 0.5 ms to 131 s
	}, []string{"api"})
	for _, key := range keys {
		name := kmsg.NameForKey(key)
		m.api[key] = &apiMetrics{
			requests:      requests.WithLabelValues(name),
			requestBytes:  requestBytes.WithLabelValues(name),
			responseBytes: responseBytes.WithLabelValues(name),
			duration:      duration.WithLabelValues(name),
		}
	}
	return m
}

func (m *metrics) request(key int16, bytes int) {
	a := m.api[key]
	a.requests.Inc()
	a.requestBytes.Add(float64(bytes))
}

func (m *metrics) response(key int16, bytes int, since time.Time) {
	a := m.api[key]
	a.responseBytes.Add(float64(bytes))
	a.duration.Observe(time.Since(since).Seconds())
}
