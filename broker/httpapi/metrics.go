package httpapi

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are the numbers of the HTTP door. No series carries the name of a stream or client, because their number has
// no bound.
type metrics struct {
	requests       *prometheus.CounterVec   // by route and status
	seconds        *prometheus.HistogramVec // by route
	inFlight       prometheus.Gauge
	followers      *prometheus.GaugeVec // by kind
	sent, received prometheus.Counter
	records        *prometheus.CounterVec // by direction
	slowClients    prometheus.Counter
	memoryWaits    prometheus.Counter
	connections    prometheus.Gauge
	// connectionsRefused counts those beyond the limit.
	connectionsRefused prometheus.Counter
}

// Kinds of followers.
const (
	liveLongPoll = "long-poll"
	liveSSE      = "sse"
	livePrefix   = "prefix"
)

// Directions of records.
const (
	recordsIn  = "in"
	recordsOut = "out"
)

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "brooklet", Subsystem: "http", Name: name, Help: help}
	}
	m := &metrics{
		requests: f.NewCounterVec(prometheus.CounterOpts(opts("requests_total", "Requests answered, by route and status.")), []string{"route", "status"}),
		seconds: f.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "brooklet", Subsystem: "http", Name: "request_seconds", Help: "Time from the head of a request to the end of its reply, without reads that wait for records.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 9),
		}, []string{"route"}),
		inFlight:           f.NewGauge(prometheus.GaugeOpts(opts("requests_in_flight", "Requests being answered, those that wait for records included."))),
		followers:          f.NewGaugeVec(prometheus.GaugeOpts(opts("followers", "Reads that wait for records.")), []string{"kind"}),
		sent:               f.NewCounter(prometheus.CounterOpts(opts("sent_bytes_total", "Bytes of reply bodies sent."))),
		received:           f.NewCounter(prometheus.CounterOpts(opts("received_bytes_total", "Bytes of request bodies received."))),
		records:            f.NewCounterVec(prometheus.CounterOpts(opts("records_total", "Records appended and read.")), []string{"direction"}),
		slowClients:        f.NewCounter(prometheus.CounterOpts(opts("slow_clients_cut_total", "Replies ended because the client took nothing for too long."))),
		memoryWaits:        f.NewCounter(prometheus.CounterOpts(opts("memory_waits_total", "Requests that waited for memory."))),
		connections:        f.NewGauge(prometheus.GaugeOpts(opts("connections", "Open connections."))),
		connectionsRefused: f.NewCounter(prometheus.CounterOpts(opts("connections_refused_total", "Connections closed because as many as allowed were open."))),
	}
	for _, kind := range []string{liveLongPoll, liveSSE, livePrefix} {
		m.followers.WithLabelValues(kind)
	}
	for _, direction := range []string{recordsIn, recordsOut} {
		m.records.WithLabelValues(direction)
	}
	return m
}
