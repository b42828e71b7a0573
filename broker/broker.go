package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap"

	"github.com/brookletmq/brooklet/broker/groups"
	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/streamstore"
)

// leaderEpoch is the epoch of every partition. An epoch exists so that clients can find out which records a change of
// leader cut off; a record that a reader has seen here is durable and is never cut off, so all data belongs to one
// epoch and no client ever has to truncate.
const leaderEpoch = streamstore.LeaderEpoch

// Options configure a [Broker].
type Options struct {
	// NodeID is this broker's id in metadata. 0 means 1.
	NodeID int32
	// AdvertisedHost and AdvertisedPort are the address that clients are told to connect to. Both are required:
	// a client that is given an address it cannot reach fails long after its first, successful, connection.
	AdvertisedHost string
	AdvertisedPort int32
	// Rack is reported in metadata (KIP-36). Empty means none.
	Rack string

	// AutoCreateTopics lets a metadata request that names a missing topic create it, and a write to a missing named
	// stream create that (Kafka's auto.create.topics.enable).
	AutoCreateTopics bool
	// DefaultPartitions is the partition count of topics created without one, 1 to 10,000. 0 means 1.
	DefaultPartitions int32
	// MaxMessageBytes is the default of the topic config max.message.bytes: the largest record batch, as sent, in
	// bytes. 0 means Kafka's 1048588.
	MaxMessageBytes int
	// DefaultRetention is the default of the topic config retention.ms, in whole milliseconds. 0 means Kafka's
	// 7 days, negative means for ever. Named streams are kept for ever unless they are configured.
	DefaultRetention time.Duration
	// DefaultRetentionBytes is the default of the topic config retention.bytes. 0 or negative means unlimited.
	DefaultRetentionBytes int64

	// FetchMaxBytes caps the records of one fetch reply, in bytes. 0 means Kafka's 57671680.
	FetchMaxBytes int
	// FetchMemory is the memory all fetch replies in flight may hold, in bytes. 0 means 256 MiB. It is raised to
	// FetchMaxBytes if it is lower. One reply takes an eighth of what is free at most.
	FetchMemory int64
	// FetchSessionSlots is how many incremental fetch sessions are kept. 0 means Kafka's 1000.
	FetchSessionSlots int

	// Groups configure consumer groups and committed offsets. Its Logger and Registerer default to the broker's.
	Groups groups.Options

	// Store holds all state. Required; the broker does not close it.
	Store *streamstore.Store
	// Logger receives the broker's log. Nil means no log.
	Logger *zap.Logger
	// Registerer receives the broker's metrics. Nil means none are registered.
	Registerer prometheus.Registerer
}

// Defaults that are Kafka's own.
const (
	defaultMaxMessageBytes = 1048588
	defaultRetention       = 7 * 24 * time.Hour
	defaultFetchMaxBytes   = 55 << 20
	defaultFetchSessions   = 1000
)

// maxPartitionsPerRequest bounds the partitions that one request may create, as Kafka's controller does.
const maxPartitionsPerRequest = 10_000

// EnsureDefaults fills the fields that are zero.
func (o *Options) EnsureDefaults() {
	setDefault(&o.NodeID, 1)
	setDefault(&o.DefaultPartitions, 1)
	setDefault(&o.MaxMessageBytes, defaultMaxMessageBytes)
	setDefault(&o.DefaultRetention, defaultRetention)
	setDefault(&o.DefaultRetentionBytes, -1)
	setDefault(&o.FetchMaxBytes, defaultFetchMaxBytes)
	setDefault(&o.FetchMemory, 256<<20)
	setDefault(&o.FetchSessionSlots, defaultFetchSessions)
	o.FetchMemory = max(o.FetchMemory, int64(o.FetchMaxBytes))
	if o.DefaultRetention < 0 {
		o.DefaultRetention = -1
	}
	if o.DefaultRetentionBytes < 0 {
		o.DefaultRetentionBytes = -1
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	setDefault(&o.Groups.Logger, o.Logger)
	if o.Groups.Registerer == nil {
		o.Groups.Registerer = o.Registerer
	}
	o.Groups.EnsureDefaults()
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
			errs = append(errs, fmt.Errorf("broker: "+format, args...))
		}
	}
	check(o.Store != nil, "Store is required")
	check(o.NodeID >= 0, "NodeID is %d; it must not be negative", o.NodeID)
	check(o.AdvertisedHost != "", "AdvertisedHost is empty; set it to a name or address that clients can reach")
	check(o.AdvertisedPort > 0 && o.AdvertisedPort <= 65535, "AdvertisedPort is %d; it must be 1 to 65535", o.AdvertisedPort)
	check(o.DefaultPartitions > 0 && o.DefaultPartitions <= maxPartitionsPerRequest,
		"DefaultPartitions is %d; it must be 1 to %d", o.DefaultPartitions, maxPartitionsPerRequest)
	check(o.MaxMessageBytes > 0 && o.MaxMessageBytes <= maxBatchBytes, "MaxMessageBytes is %d; it must be 1 to %d", o.MaxMessageBytes, maxBatchBytes)
	check(o.DefaultRetention < 0 || o.DefaultRetention >= time.Millisecond,
		"DefaultRetention is %s; it must be at least 1ms, or negative for ever", o.DefaultRetention)
	check(o.FetchMaxBytes > 0, "FetchMaxBytes is %d; it must be positive", o.FetchMaxBytes)
	check(o.FetchMemory > 0, "FetchMemory is %d; it must be positive", o.FetchMemory)
	check(o.FetchSessionSlots > 0, "FetchSessionSlots is %d; it must be positive", o.FetchSessionSlots)
	errs = append(errs, o.Groups.Validate())
	return errors.Join(errs...)
}

// Broker answers Kafka requests from one store. It is a [kafkaproto.Handler]; its methods may be called from any
// goroutine.
type Broker struct {
	opts      Options
	store     *streamstore.Store
	topics    *catalogue
	producers *producerIDs
	fetches   *fetcher
	groups    *groups.Coordinator
	clusterID string
	versions  *kafkaproto.Versions
	// self is the replica list of every partition; shared by all replies, never changed.
	self []int32
	log  *zap.Logger
	m    *metrics

	// draining is closed by Drain: replies that wait for data are due at once.
	draining  chan struct{}
	drainOnce sync.Once
	// txnWarning: see warnTransactions.
	txnWarning sync.Once
}

var _ kafkaproto.Handler = (*Broker)(nil)

// New loads the catalogue from the store and makes the cluster id if this is the store's first broker. It reads every
// topic row once; ctx bounds the work.
func New(ctx context.Context, opts Options) (*Broker, error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	m := newMetrics(opts.Registerer)
	b := &Broker{
		opts:      opts,
		store:     opts.Store,
		producers: &producerIDs{store: opts.Store, m: m},
		log:       opts.Logger,
		m:         m,
		draining:  make(chan struct{}),
	}
	b.self = []int32{opts.NodeID}
	var err error
	if b.versions, err = kafkaproto.NewVersions(ServedKeys()...); err != nil {
		return nil, fmt.Errorf("broker: %w", err)
	}
	if b.clusterID, err = loadClusterID(ctx, b.store); err != nil {
		return nil, fmt.Errorf("broker: cluster id: %w", err)
	}
	if b.topics, err = loadCatalogue(ctx, &b.opts, b.m); err != nil {
		return nil, fmt.Errorf("broker: topic catalogue: %w", err)
	}
	b.fetches = newFetcher(&b.opts, b.hasPartition)
	if b.groups, err = groups.New(ctx, b.opts.Groups, groupRows{b.store}, groupTopics{b.topics}); err != nil {
		b.topics.close()
		return nil, fmt.Errorf("broker: %w", err)
	}
	b.topics.deleted = b.groups.TopicsDeleted
	s := b.topics.load()
	b.log.Info("broker ready", zap.String("cluster", b.clusterID), zap.Int("topics", len(s.byName)), zap.Int("partitions", s.partitions))
	return b, nil
}

// Drain tells requests that wait for data to answer with what they have, and those that wait for members of their group
// to look for the coordinator again; and it makes the readiness probe fail. It returns at once and may be called many
// times.
func (b *Broker) Drain() {
	b.drainOnce.Do(func() { close(b.draining) })
	b.groups.Drain()
}

// Close ends all fetch sessions, stops the group coordinator, and waits until no change of catalogue or groups is on its
// way. Call it when no request is running any more and before the store is closed.
func (b *Broker) Close() {
	b.fetches.close()
	b.groups.Close()
	b.topics.close()
}

// ClusterID returns the id that clients see, 22 characters of base64url. It never changes for a store.
func (b *Broker) ClusterID() string { return b.clusterID }

// Versions returns the table of APIs that this broker serves, for the server that carries its requests.
func (b *Broker) Versions() *kafkaproto.Versions { return b.versions }

// Handle starts one request: see [kafkaproto.Handler].
func (b *Broker) Handle(ctx context.Context, r *kafkaproto.Request) (kafkaproto.Reply, error) {
	h, ok := handlers[r.Key]
	if !ok {
		return nil, fmt.Errorf("broker: no handler for API key %d", r.Key)
	}
	return h(b, ctx, r)
}

// A handler starts one request of its API key. See [kafkaproto.Handler] for where it runs, what it may wait for there,
// and what its results mean.
type handler func(b *Broker, ctx context.Context, r *kafkaproto.Request) (kafkaproto.Reply, error)

// handlers is filled by the init functions of the NN_name.go files and read-only after that. ApiVersions is built from
// it, so an API is advertised if and only if it is served.
var handlers = map[int16]handler{}

// register adds the handler of one API key; its versions are those of kafkaproto's table.
func register(key int16, h handler) {
	if _, ok := handlers[key]; ok {
		panic(fmt.Sprintf("broker: API key %d registered twice", key))
	}
	handlers[key] = h
}

// direct makes a handler of a function that computes the whole answer where the request is read, as Kafka does for
// everything but long waits: a later request of the same connection sees all effects of this one.
func direct(fn func(b *Broker, ctx context.Context, r *kafkaproto.Request) (kmsg.Response, error)) handler {
	return func(b *Broker, ctx context.Context, r *kafkaproto.Request) (kafkaproto.Reply, error) {
		resp, err := fn(b, ctx, r)
		if err != nil {
			return nil, err
		}
		return func(context.Context) (kmsg.Response, error) { return resp, nil }, nil
	}
}

// ServedKeys returns the API keys that this package serves, ascending.
func ServedKeys() []int16 {
	keys := make([]int16, 0, len(handlers))
	for k := range handlers {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
