package broker

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/kafkaproto/ext"
	"github.com/brookletmq/brooklet/streamstore"
)

// Topic configs that the broker acts on.
const (
	configCleanupPolicy   = "cleanup.policy"
	configMaxMessageBytes = "max.message.bytes"
	configTimestampType   = "message.timestamp.type"
	configTimestampBefore = "message.timestamp.before.max.ms"
	configTimestampAfter  = "message.timestamp.after.max.ms"
	configRetentionMs     = "retention.ms"
	configRetentionBytes  = "retention.bytes"
)

// maxConfigValue is the longest value, in bytes. All values of a topic are one row of the store and stay in memory.
const maxConfigValue = 32 << 10

const logAppendTime = "LogAppendTime"

const maxInt64 = "9223372036854775807"

// configDef describes one config of Kafka's class TopicConfig.
type configDef struct {
	name string
	kind kmsg.ConfigType
	// value is Kafka's default.
	value string
	// synonym is the broker config that gives the default.
	synonym string
	// check returns what is allowed if the value is not. Nil allows every value of the kind.
	check func(value string) error
	// honoured tells that the broker acts on the config. The others describe files, replicas and tiers that Brooklet
	// does not have; clients and tools set them, so they are checked, stored and reported, and change nothing.
	honoured bool
	doc      string
}

// topicConfigs is every topic config that is known, in order of names. Defaults and ranges are Kafka 4.0's (class
// LogConfig), but for segment.bytes, which accepts the small values of older releases.
var topicConfigs = []configDef{
	{name: configCleanupPolicy, kind: kmsg.ConfigTypeList, value: "delete", synonym: "log.cleanup.policy", check: cleanupPolicy, honoured: true,
		doc: "What happens to old records: delete drops those past retention. Compaction is not supported yet."},
	{name: "compression.gzip.level", kind: kmsg.ConfigTypeInt, value: "-1", synonym: "compression.gzip.level", check: anyOf(exactly("-1"), intIn(1, 9)),
		doc: "Accepted and ignored: the broker never compresses again."},
	{name: "compression.lz4.level", kind: kmsg.ConfigTypeInt, value: "9", synonym: "compression.lz4.level", check: intIn(1, 17),
		doc: "Accepted and ignored: the broker never compresses again."},
	// Other codecs than producer are accepted although batches stay as they are: readers get the same records either
	// way, and many tools set a codec on every topic they create.
	{name: "compression.type", kind: kmsg.ConfigTypeString, value: "producer", synonym: "compression.type",
		check: oneOf("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"), honoured: true,
		doc: "Batches are always stored as the producer compressed them; other codecs are accepted and have no effect."},
	{name: "compression.zstd.level", kind: kmsg.ConfigTypeInt, value: "3", synonym: "compression.zstd.level", check: intIn(-131072, 22),
		doc: "Accepted and ignored: the broker never compresses again."},
	{name: "delete.retention.ms", kind: kmsg.ConfigTypeLong, value: "86400000", synonym: "log.cleaner.delete.retention.ms", check: longFrom(0),
		doc: "Accepted and ignored: how long compaction keeps tombstones."},
	{name: "file.delete.delay.ms", kind: kmsg.ConfigTypeLong, value: "60000", synonym: "log.segment.delete.delay.ms", check: longFrom(0),
		doc: "Accepted and ignored: objects are deleted after the store's own grace time."},
	{name: "flush.messages", kind: kmsg.ConfigTypeLong, value: maxInt64, synonym: "log.flush.interval.messages", check: longFrom(1),
		doc: "Accepted and ignored: durability is a setting of the broker."},
	{name: "flush.ms", kind: kmsg.ConfigTypeLong, value: maxInt64, synonym: "log.flush.interval.ms", check: longFrom(0),
		doc: "Accepted and ignored: durability is a setting of the broker."},
	{name: "follower.replication.throttled.replicas", kind: kmsg.ConfigTypeList, value: "", check: throttledReplicas,
		doc: "Accepted and ignored: there are no follower replicas."},
	{name: "index.interval.bytes", kind: kmsg.ConfigTypeInt, value: "4096", synonym: "log.index.interval.bytes", check: intIn(0, math.MaxInt32),
		doc: "Accepted and ignored."},
	{name: "leader.replication.throttled.replicas", kind: kmsg.ConfigTypeList, value: "", check: throttledReplicas,
		doc: "Accepted and ignored: there are no follower replicas."},
	{name: "local.retention.bytes", kind: kmsg.ConfigTypeLong, value: "-2", synonym: "log.local.retention.bytes", check: longFrom(-2),
		doc: "Accepted and ignored: all data lives in the object store, local disks are a cache."},
	{name: "local.retention.ms", kind: kmsg.ConfigTypeLong, value: "-2", synonym: "log.local.retention.ms", check: longFrom(-2),
		doc: "Accepted and ignored: all data lives in the object store, local disks are a cache."},
	{name: "max.compaction.lag.ms", kind: kmsg.ConfigTypeLong, value: maxInt64, synonym: "log.cleaner.max.compaction.lag.ms", check: longFrom(1),
		doc: "Accepted and ignored: see cleanup.policy."},
	{name: configMaxMessageBytes, kind: kmsg.ConfigTypeInt, value: strconv.Itoa(defaultMaxMessageBytes), synonym: "message.max.bytes", check: batchLimit, honoured: true,
		doc: "The largest record batch accepted, in bytes, as the producer sent it (after compression): 0 (none) to 67108864."},
	{name: configTimestampAfter, kind: kmsg.ConfigTypeLong, value: "3600000", synonym: "log.message.timestamp.after.max.ms", check: longFrom(0), honoured: true,
		doc: "How far ahead of the broker's clock the timestamps of a batch may be, in milliseconds (KIP-937)."},
	{name: configTimestampBefore, kind: kmsg.ConfigTypeLong, value: maxInt64, synonym: "log.message.timestamp.before.max.ms", check: longFrom(0), honoured: true,
		doc: "How far behind the broker's clock the timestamps of a batch may be, in milliseconds (KIP-937)."},
	{name: configTimestampType, kind: kmsg.ConfigTypeString, value: "CreateTime", synonym: "log.message.timestamp.type", check: oneOf("CreateTime", logAppendTime), honoured: true,
		doc: "Whether records keep the producer's timestamps (CreateTime) or get the broker's (LogAppendTime)."},
	{name: "min.cleanable.dirty.ratio", kind: kmsg.ConfigTypeDouble, value: "0.5", synonym: "log.cleaner.min.cleanable.ratio", check: doubleIn(0, 1),
		doc: "Accepted and ignored: see cleanup.policy."},
	{name: "min.compaction.lag.ms", kind: kmsg.ConfigTypeLong, value: "0", synonym: "log.cleaner.min.compaction.lag.ms", check: longFrom(0),
		doc: "Accepted and ignored: see cleanup.policy."},
	{name: "min.insync.replicas", kind: kmsg.ConfigTypeInt, value: "1", synonym: "min.insync.replicas", check: intIn(1, math.MaxInt32),
		doc: "Accepted and ignored: the object store replicates; a partition always reports one replica."},
	{name: "preallocate", kind: kmsg.ConfigTypeBoolean, value: "false", synonym: "log.preallocate", check: boolean,
		doc: "Accepted and ignored."},
	{name: "remote.log.copy.disable", kind: kmsg.ConfigTypeBoolean, value: "false", check: boolean,
		doc: "Accepted and ignored: all data lives in the object store."},
	{name: "remote.log.delete.on.disable", kind: kmsg.ConfigTypeBoolean, value: "false", check: boolean,
		doc: "Accepted and ignored: all data lives in the object store."},
	{name: "remote.storage.enable", kind: kmsg.ConfigTypeBoolean, value: "false", check: noTiering,
		doc: "Always false: all data lives in the object store, there is no second tier."},
	{name: configRetentionBytes, kind: kmsg.ConfigTypeLong, value: "-1", synonym: "log.retention.bytes", check: longFrom(-1), honoured: true,
		doc: "The bytes a partition keeps before its oldest records are dropped; -1 for no limit."},
	{name: configRetentionMs, kind: kmsg.ConfigTypeLong, value: "604800000", synonym: "log.retention.ms", check: longFrom(-1), honoured: true,
		doc: "How long records are kept, in milliseconds; -1 for ever."},
	{name: "segment.bytes", kind: kmsg.ConfigTypeInt, value: "1073741824", synonym: "log.segment.bytes", check: intIn(14, math.MaxInt32),
		doc: "Accepted and ignored: the store chooses the size of its objects."},
	{name: "segment.index.bytes", kind: kmsg.ConfigTypeInt, value: "10485760", synonym: "log.index.size.max.bytes", check: intIn(4, math.MaxInt32),
		doc: "Accepted and ignored."},
	{name: "segment.jitter.ms", kind: kmsg.ConfigTypeLong, value: "0", synonym: "log.roll.jitter.ms", check: longFrom(0),
		doc: "Accepted and ignored."},
	{name: "segment.ms", kind: kmsg.ConfigTypeLong, value: "604800000", synonym: "log.roll.ms", check: longFrom(1),
		doc: "Accepted and ignored: the store flushes at its own interval."},
	{name: "unclean.leader.election.enable", kind: kmsg.ConfigTypeBoolean, value: "false", synonym: "unclean.leader.election.enable", check: boolean,
		doc: "Accepted and ignored: there is no election that could lose records."},
}

// streamConfigs are the configs that only named streams have, in order of names. Kafka does not know them.
var streamConfigs = []configDef{
	{name: ext.ConfigClosed, kind: kmsg.ConfigTypeBoolean, value: "false", check: boolean, honoured: true,
		doc: "Whether the stream takes no more records. Once true it stays so."},
	{name: ext.ConfigContentType, kind: kmsg.ConfigTypeString, value: "", honoured: true,
		doc: "The media type of the records' values, such as application/json. The broker only keeps it."},
	{name: ext.ConfigTTL, kind: kmsg.ConfigTypeLong, value: "-1", check: anyOf(exactly("-1"), longFrom(1)), honoured: true,
		doc: "The stream is deleted when nothing was written to it for so long, in milliseconds; -1 for never."},
}

// topicConfigDefs and streamConfigDefs find a definition by name.
var (
	topicConfigDefs  = indexConfigs(topicConfigs)
	streamConfigDefs = indexConfigs(streamConfigs)
)

func indexConfigs(defs []configDef) map[string]*configDef {
	m := make(map[string]*configDef, len(defs))
	for i := range defs {
		m[defs[i].name] = &defs[i]
	}
	return m
}

// def finds a config that topics have, or named streams if these are their defaults.
func (d *configDefaults) def(name string) (*configDef, bool) {
	if def, ok := topicConfigDefs[name]; ok {
		return def, true
	}
	if !d.stream {
		return nil, false
	}
	def, ok := streamConfigDefs[name]
	return def, ok
}

// defs returns all of them, in order of names.
func (d *configDefaults) defs() []configDef {
	if !d.stream {
		return topicConfigs
	}
	return allStreamConfigs
}

var allStreamConfigs = slices.SortedFunc(slices.Values(slices.Concat(topicConfigs, streamConfigs)),
	func(a, b configDef) int { return strings.Compare(a.name, b.name) })

// settableOnStreams tells the configs that can be set on a named stream, which has a row for no more.
func (d *configDef) settableOnStreams() bool {
	return d.name == configRetentionMs || d.name == configRetentionBytes || streamConfigDefs[d.name] != nil
}

// validate checks a value. The error is INVALID_CONFIG and names the config, the value and what is allowed.
func (d *configDef) validate(value string) *kafkaproto.Error {
	if d.check == nil {
		return nil
	}
	if err := d.check(value); err != nil {
		return kafkaproto.ErrInvalidConfig.WithMessage("Invalid value %s for configuration %s: %v", value, d.name, err)
	}
	return nil
}

func errUnknownConfig(name string) *kafkaproto.Error {
	return kafkaproto.ErrInvalidConfig.WithMessage("Unknown topic config name: %s", name)
}

// topicConfig is the config in effect for a topic. It is immutable.
type topicConfig struct {
	// defaults are what holds where overrides is silent.
	defaults *configDefaults
	// overrides are the values set on the topic itself.
	overrides map[string]string

	// The parsed values that requests need.
	maxMessageBytes int
	logAppendTime   bool
	// timestampBeforeMs and timestampAfterMs bound the distance of a batch's timestamps from the broker's clock, in
	// milliseconds. MaxInt64 is no bound.
	timestampBeforeMs, timestampAfterMs int64
	// retentionMs and retentionBytes are -1 for no limit.
	retentionMs, retentionBytes int64
	// Of named streams only. ttlMs is -1 for ever.
	ttlMs       int64
	contentType string
	closed      bool
}

// value returns the value in effect.
func (c *topicConfig) value(name string) string {
	if v, ok := c.overrides[name]; ok {
		return v
	}
	return c.defaults.values[name]
}

// source tells where the value in effect comes from.
func (c *topicConfig) source(name string) kmsg.ConfigSource {
	if _, ok := c.overrides[name]; ok {
		return kmsg.ConfigSourceDynamicTopicConfig
	}
	return c.defaults.source(name)
}

// settings returns what the store must know. Kafka's retention.ms=0 (drop as soon as possible) becomes 1 ms, the
// shortest time that the store takes.
func (c *topicConfig) settings() streamstore.Settings {
	s := streamstore.Settings{Retention: -1, RetentionBytes: c.retentionBytes}
	if ms := c.retentionMs; ms >= 0 && ms <= math.MaxInt64/int64(time.Millisecond) {
		s.Retention = time.Duration(max(ms, 1)) * time.Millisecond
	}
	if ms := c.ttlMs; ms > 0 && ms <= math.MaxInt64/int64(time.Millisecond) {
		s.TTL = time.Duration(ms) * time.Millisecond
	}
	s.ContentType = c.contentType
	return s
}

// changeSettings makes s what the config says, and leaves what no config tells of.
func (c *topicConfig) changeSettings(s *streamstore.Settings) {
	expires := s.ExpiresAt
	*s = c.settings()
	s.ExpiresAt = expires
}

// streamOverrides is the inverse of settings, for named streams, whose settings are all the config they have.
func streamOverrides(info *streamstore.StreamInfo) map[string]string {
	var m map[string]string
	set := func(name, value string) {
		if m == nil {
			m = map[string]string{}
		}
		m[name] = value
	}
	s := &info.Settings
	if s.Retention >= 0 {
		set(configRetentionMs, retentionMs(s.Retention))
	}
	if s.RetentionBytes >= 0 {
		set(configRetentionBytes, strconv.FormatInt(s.RetentionBytes, 10))
	}
	if s.TTL > 0 {
		set(ext.ConfigTTL, retentionMs(s.TTL))
	}
	if s.ContentType != "" {
		set(ext.ConfigContentType, s.ContentType)
	}
	if info.Closed {
		set(ext.ConfigClosed, "true")
	}
	return m
}

// configDefaults are the configs of a topic, or of a named stream, without overrides.
type configDefaults struct {
	values map[string]string
	// static marks the values that come from the broker's options and differ from Kafka's.
	static map[string]bool
	// stream tells that these are the defaults of named streams, on which few can be set.
	stream bool
	// plain is the config without overrides, shared by all topics that have none.
	plain *topicConfig
}

func newConfigDefaults(o *Options, stream bool) *configDefaults {
	d := &configDefaults{values: make(map[string]string, len(topicConfigs)), static: map[string]bool{}, stream: stream}
	for _, def := range d.defs() {
		d.values[def.name] = def.value
	}
	set := func(name, value string) {
		if d.values[name] != value {
			d.values[name], d.static[name] = value, true
		}
	}
	set(configMaxMessageBytes, strconv.Itoa(o.MaxMessageBytes))
	if stream {
		set(configRetentionMs, "-1")
	} else {
		set(configRetentionMs, retentionMs(o.DefaultRetention))
		set(configRetentionBytes, strconv.FormatInt(o.DefaultRetentionBytes, 10))
	}
	d.plain = d.parse(nil)
	return d
}

// retentionMs writes a retention time as Kafka does.
func retentionMs(d time.Duration) string {
	if d < 0 {
		return "-1"
	}
	return strconv.FormatInt(d.Milliseconds(), 10)
}

// source tells whether a default is the broker's or Kafka's.
func (d *configDefaults) source(name string) kmsg.ConfigSource {
	if d.static[name] {
		return kmsg.ConfigSourceStaticBrokerConfig
	}
	return kmsg.ConfigSourceDefaultConfig
}

// newConfig makes the config with these overrides, which it takes over. The error is INVALID_CONFIG.
func (d *configDefaults) newConfig(overrides map[string]string) (*topicConfig, *kafkaproto.Error) {
	for _, name := range slices.Sorted(maps.Keys(overrides)) {
		def, ok := d.def(name)
		if !ok {
			return nil, errUnknownConfig(name)
		}
		if n := len(overrides[name]); n > maxConfigValue {
			return nil, kafkaproto.ErrInvalidConfig.WithMessage("Invalid value for configuration %s: it has %d bytes, the limit is %d", name, n, maxConfigValue)
		}
		overrides[name] = strings.TrimSpace(overrides[name])
		if err := def.validate(overrides[name]); err != nil {
			return nil, err
		}
		if !d.stream || def.settableOnStreams() {
			continue
		}
		if overrides[name] != d.values[name] {
			return nil, kafkaproto.ErrInvalidConfig.WithMessage("%s cannot be set on a stream, where it is always %q; a stream has only %s, %s, %s, %s and %s",
				name, d.values[name], configRetentionMs, configRetentionBytes, ext.ConfigTTL, ext.ConfigContentType, ext.ConfigClosed)
		}
		delete(overrides, name)
	}
	return d.parse(overrides), nil
}

// storedConfig is newConfig for overrides that were checked when they were stored. A value that this release refuses, or
// a name that it does not know, is kept as it is; the default is in effect.
func (d *configDefaults) storedConfig(overrides map[string]string) *topicConfig {
	if len(overrides) == 0 && d.plain != nil {
		return d.plain
	}
	return d.parse(overrides)
}

func (d *configDefaults) parse(overrides map[string]string) *topicConfig {
	c := &topicConfig{defaults: d, overrides: overrides}
	number := func(name string) int64 {
		if n, err := strconv.ParseInt(c.value(name), 10, 64); err == nil {
			return n
		}
		n, _ := strconv.ParseInt(d.values[name], 10, 64)
		return n
	}
	c.maxMessageBytes = int(number(configMaxMessageBytes))
	c.logAppendTime = c.value(configTimestampType) == logAppendTime
	c.timestampBeforeMs = number(configTimestampBefore)
	c.timestampAfterMs = number(configTimestampAfter)
	c.retentionMs = number(configRetentionMs)
	c.retentionBytes = number(configRetentionBytes)
	if d.stream {
		c.ttlMs = number(ext.ConfigTTL)
		c.contentType = c.value(ext.ConfigContentType)
		c.closed = strings.EqualFold(c.value(ext.ConfigClosed), "true")
	}
	return c
}

// Checks of values. Each returns an error that says what is allowed.

func intIn(low, high int64) func(string) error {
	return func(v string) error {
		n, err := strconv.ParseInt(v, 10, 64)
		switch {
		case err == nil && low <= n && n <= high:
			return nil
		case high == math.MaxInt32:
			return fmt.Errorf("it must be a 32 bit integer of at least %d", low)
		case high == math.MaxInt64:
			return fmt.Errorf("it must be a 64 bit integer of at least %d", low)
		}
		return fmt.Errorf("it must be an integer from %d to %d", low, high)
	}
}

// maxBatchBytes is the largest record batch that the store takes unless its options say otherwise, in bytes.
const maxBatchBytes = 64 << 20

// batchLimit allows the sizes of record batches that the store takes.
func batchLimit(v string) error {
	if intIn(0, maxBatchBytes)(v) == nil {
		return nil
	}
	return fmt.Errorf("it must be an integer from 0 to %d (64 MiB), the largest record batch that the store takes", maxBatchBytes)
}

func longFrom(low int64) func(string) error { return intIn(low, math.MaxInt64) }

func doubleIn(low, high float64) func(string) error {
	return func(v string) error {
		if f, err := strconv.ParseFloat(v, 64); err == nil && low <= f && f <= high {
			return nil
		}
		return fmt.Errorf("it must be a number from %g to %g", low, high)
	}
}

func oneOf(allowed ...string) func(string) error {
	return func(v string) error {
		if slices.Contains(allowed, v) {
			return nil
		}
		return fmt.Errorf("it must be one of %s", strings.Join(allowed, ", "))
	}
}

func exactly(value string) func(string) error { return oneOf(value) }

func anyOf(checks ...func(string) error) func(string) error {
	return func(v string) error {
		var allowed []string
		for _, check := range checks {
			err := check(v)
			if err == nil {
				return nil
			}
			allowed = append(allowed, err.Error())
		}
		return fmt.Errorf("%s", strings.Join(allowed, ", or "))
	}
}

func boolean(v string) error {
	if strings.EqualFold(v, "true") || strings.EqualFold(v, "false") {
		return nil
	}
	return fmt.Errorf("it must be true or false")
}

func noTiering(v string) error {
	if strings.EqualFold(v, "false") {
		return nil
	}
	return fmt.Errorf("it must be false: all data lives in the object store already, there is no second tier")
}

func cleanupPolicy(v string) error {
	for _, policy := range splitList(v) {
		switch policy {
		case "delete":
		case "compact":
			return fmt.Errorf("compaction is not supported yet, only delete is")
		default:
			return fmt.Errorf("it must be delete")
		}
	}
	if v == "" {
		return fmt.Errorf("it must be delete")
	}
	return nil
}

// throttledReplicas allows *, or a list of partition:replica.
func throttledReplicas(v string) error {
	if v == "*" {
		return nil
	}
	for _, entry := range splitList(v) {
		partition, replica, _ := strings.Cut(entry, ":")
		_, err1 := strconv.ParseUint(partition, 10, 31)
		_, err2 := strconv.ParseUint(replica, 10, 31)
		if err1 != nil || err2 != nil {
			return fmt.Errorf("it must be * or a list of partition:replica, such as 0:1,1:1")
		}
	}
	return nil
}

// splitList splits a value of the list kind at commas. The empty value is the empty list.
func splitList(v string) []string {
	if strings.TrimSpace(v) == "" {
		return nil
	}
	parts := strings.Split(v, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}
