package broker

import (
	"github.com/brookletmq/brooklet/broker/httpapi"
)

// NewHTTP makes the server of the stream API over HTTP. The broker fills in the store, the topics, and what its own options
// say; opts has the rest. Its Logger and Registerer default to the broker's.
func (b *Broker) NewHTTP(opts httpapi.Options) (*httpapi.Server, error) {
	opts.Store, opts.Topics = b.store, httpTopics{b.topics}
	opts.AutoCreate, opts.MaxBatchBytes = b.opts.AutoCreateTopics, b.opts.MaxMessageBytes
	setDefault(&opts.Logger, b.log)
	if opts.Registerer == nil {
		opts.Registerer = b.opts.Registerer
	}
	return httpapi.New(opts)
}

// httpTopics tells the HTTP server which partitions of topics there are.
type httpTopics struct{ catalogue *catalogue }

var _ httpapi.Topics = httpTopics{}

func (t httpTopics) Partition(name string, partition int32) (httpapi.Rules, bool) {
	topic, ok := t.catalogue.load().byName[name]
	if !ok {
		return httpapi.Rules{}, false
	}
	if _, ok := topic.partition(partition); !ok {
		return httpapi.Rules{}, false
	}
	c := topic.config
	return httpapi.Rules{
		MaxBatchBytes: c.maxMessageBytes,
		LogAppendTime: c.logAppendTime,
		BeforeMax:     c.timestampBeforeMs,
		AfterMax:      c.timestampAfterMs,
		ReadOnly:      isInternal(name),
	}, true
}
