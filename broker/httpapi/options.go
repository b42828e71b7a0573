package httpapi

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/brookletmq/brooklet/streamstore"
)

// Options configure a [Server]. The zero value of a field means its default, which EnsureDefaults fills in.
type Options struct {
	// Store holds the streams. Required; the server does not close it.
	Store *streamstore.Store
	// Topics knows the partitions of Kafka topics. Nil means that there are none.
	Topics Topics

	// AutoCreate lets an append to a stream that does not exist make it.
	AutoCreate bool
	// MaxBatchBytes is the largest record batch appended to a named stream, in bytes, its header of 61 bytes included.
	// Default 1048588, as Kafka's message.max.bytes. All records of one append are one batch, unless the body is
	// NDJSON or binary batches.
	MaxBatchBytes int
	// MaxBodyBytes bounds a request body that is held in memory, after decompression. Default 16 MiB. Bodies that are
	// read piece by piece, NDJSON and binary batches, may be longer.
	MaxBodyBytes int64
	// MaxReadBytes bounds max_bytes, what one reply to a read may hold. Default 16 MiB.
	MaxReadBytes int
	// Memory bounds the request bodies and replies under way, in bytes. Default 128 MiB; at least four times the
	// larger of MaxBodyBytes and MaxReadBytes. Requests wait for it.
	Memory int64
	// MaxFollowedStreams bounds the streams that one reader of a prefix may follow. Default 10,000.
	MaxFollowedStreams int

	// AppendTimeout bounds the wait of an append for room in the store and for its acknowledgement. Default 30 s.
	AppendTimeout time.Duration
	// IOTimeout: a client that takes nothing of a reply, or sends nothing of a body, for so long is cut. Default 30 s.
	IOTimeout time.Duration
	// Heartbeat is the time between signs of life on an event stream without events. Default 15 s, less than 60 s,
	// which is when many proxies give up.
	Heartbeat time.Duration

	// AllowedOrigins are the origins whose web pages may use this API (CORS), such as https://app.example.com. The
	// entry * allows every origin. Empty means none but the server's own, and then a listener on a loopback address
	// serves requests for names of this machine only.
	AllowedOrigins []string

	// MaxConnections is the number of open connections beyond which new ones are closed. Default 16384.
	MaxConnections int

	// Logger receives the server's log. Nil means no log.
	Logger *zap.Logger
	// Registerer receives the server's metrics. Nil means none are registered.
	Registerer prometheus.Registerer
}

// Topics knows the partitions of Kafka topics. Their streams, topics/<topic>/<partition>, can be read and appended to
// by their names; making, configuring and deleting them is left to the Kafka protocol.
type Topics interface {
	// Partition returns the rules for appends to a partition. ok is false if there is none.
	Partition(topic string, partition int32) (rules Rules, ok bool)
}

// Rules are what an append to a stream is held to.
type Rules struct {
	// MaxBatchBytes is the largest record batch, in bytes. 0 means that the stream takes none.
	MaxBatchBytes int
	// LogAppendTime: records get the broker's time instead of their own.
	LogAppendTime bool
	// BeforeMax and AfterMax bound the distance of a batch's timestamps from the broker's clock, in milliseconds.
	BeforeMax, AfterMax int64
	// ReadOnly: the topic is Kafka's own, and takes no records from clients.
	ReadOnly bool
}

// EnsureDefaults fills the fields that are zero.
func (o *Options) EnsureDefaults() {
	setDefault(&o.MaxBatchBytes, 1048588)
	setDefault(&o.MaxBodyBytes, 16<<20)
	setDefault(&o.MaxReadBytes, 16<<20)
	setDefault(&o.Memory, 128<<20)
	setDefault(&o.MaxFollowedStreams, 10_000)
	setDefault(&o.MaxConnections, 16384)
	setDefault(&o.AppendTimeout, 30*time.Second)
	setDefault(&o.IOTimeout, 30*time.Second)
	setDefault(&o.Heartbeat, 15*time.Second)
	if o.Topics == nil {
		o.Topics = noTopics{}
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	o.Memory = max(o.Memory, 4*o.MaxBodyBytes, 4*int64(o.MaxReadBytes))
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate reports everything that is wrong with the options, after EnsureDefaults.
func (o *Options) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("httpapi: "+format, args...))
		}
	}
	check(o.Store != nil, "Store is required")
	check(o.MaxBatchBytes > 0, "MaxBatchBytes is %d; it must be positive", o.MaxBatchBytes)
	check(o.MaxBodyBytes > 0, "MaxBodyBytes is %d; it must be positive", o.MaxBodyBytes)
	check(o.MaxReadBytes > 0, "MaxReadBytes is %d; it must be positive", o.MaxReadBytes)
	check(o.MaxFollowedStreams > 0, "MaxFollowedStreams is %d; it must be positive", o.MaxFollowedStreams)
	check(o.AppendTimeout > 0, "AppendTimeout is %v; it must be positive", o.AppendTimeout)
	check(o.IOTimeout > 0, "IOTimeout is %v; it must be positive", o.IOTimeout)
	check(o.Heartbeat > 0 && o.Heartbeat < time.Minute, "Heartbeat is %v; it must be positive and less than 60s, when proxies cut silent connections", o.Heartbeat)
	check(o.MaxConnections > 0, "MaxConnections is %d; it must be positive", o.MaxConnections)
	if _, err := newForeign(o.AllowedOrigins); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

type noTopics struct{}

func (noTopics) Partition(string, int32) (Rules, bool) { return Rules{}, false }
