package broker

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metricFactory makes metrics named brooklet_broker_<name>.
type metricFactory struct{ promauto.Factory }

// newMetricFactory makes a factory that registers with reg. Nil registers nothing.
func newMetricFactory(reg prometheus.Registerer) metricFactory {
	return metricFactory{promauto.With(reg)}
}

func metricOpts(name, help string) prometheus.Opts {
	return prometheus.Opts{Namespace: "brooklet", Subsystem: "broker", Name: name, Help: help}
}

func (f metricFactory) gauge(name, help string) prometheus.Gauge {
	return f.NewGauge(prometheus.GaugeOpts(metricOpts(name, help)))
}

func (f metricFactory) counter(name, help string) prometheus.Counter {
	return f.NewCounter(prometheus.CounterOpts(metricOpts(name, help)))
}

// counterVec makes a counter with one label and starts all its values at zero.
func (f metricFactory) counterVec(name, help, label string, values ...string) *prometheus.CounterVec {
	v := f.NewCounterVec(prometheus.CounterOpts(metricOpts(name, help)), []string{label})
	for _, value := range values {
		v.WithLabelValues(value)
	}
	return v
}

// metrics are the numbers of the catalogue. No series carries the name of a topic, stream or client, because their
// number has no bound. Requests are counted by kafkaproto, records by streamstore.
type metrics struct {
	topics, partitions             prometheus.Gauge
	topicsCreated, streamsCreated  *prometheus.CounterVec // by cause
	topicsDeleted, streamsDeleted  prometheus.Counter
	streamLookups                  prometheus.Counter
	producerIDs, producerIDsBlocks prometheus.Counter
}

// Causes of a creation.
const (
	causeRequest = "request" // CreateTopics
	causeAuto    = "auto"    // metadata or a write named what does not exist
)

func newMetrics(reg prometheus.Registerer) *metrics {
	f := newMetricFactory(reg)
	return &metrics{
		topics:            f.gauge("topics", "Topics that exist."),
		partitions:        f.gauge("partitions", "Partitions of all topics that exist."),
		topicsCreated:     f.counterVec("topics_created_total", "Topics created.", "cause", causeRequest, causeAuto),
		streamsCreated:    f.counterVec("streams_created_total", "Named streams created through the Kafka protocol.", "cause", causeRequest, causeAuto),
		topicsDeleted:     f.counter("topics_deleted_total", "Topics deleted."),
		streamsDeleted:    f.counter("streams_deleted_total", "Named streams deleted through the Kafka protocol."),
		streamLookups:     f.counter("stream_lookups_total", "Named streams looked up in the store because the cache did not have them."),
		producerIDs:       f.counter("producer_ids_total", "Producer ids handed out."),
		producerIDsBlocks: f.counter("producer_id_blocks_total", "Blocks of producer ids claimed in the store."),
	}
}
