package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/objstore"
	"github.com/brookletmq/brooklet/streamstore"
)

const (
	kib = int64(1) << 10
	mib = int64(1) << 20
	gib = int64(1) << 30
)

const (
	defaultListen      = "127.0.0.1:9092"
	defaultAdminListen = "127.0.0.1:9644"
	defaultHTTPListen  = "127.0.0.1:8080"
	kafkaPort          = 9092
)

// Values of --durability.
const (
	durabilityAuto   = "auto"
	durabilityLocal  = "local"
	durabilityRemote = "remote"
)

// settings are everything that serve can be told. Options fill the fields; check makes sure that they fit together.
type settings struct {
	listen, advertise, adminListen string
	httpListen                     string // or httpOff
	httpOrigins                    string // separated by commas
	httpMaxConnections             int
	nodeID                         int
	rack                           string

	dataDir, bucket string
	// bucketLocation is bucket without secrets; bucketSetting names the setting that it comes from.
	bucketLocation, bucketSetting string
	bucketLocal                   bool // the bucket is a folder of this machine
	durability                    string
	flushInterval                 time.Duration // 0: the store's default for its durability
	flushBytes, maxUnflushedBytes int64
	retentionCheckInterval        time.Duration
	compactionBytes               int64
	compactionInterval            time.Duration
	compactionBandwidth           int64 // bytes per second
	deleteGrace                   time.Duration
	checkpointInterval            time.Duration
	checkpointCommits             int
	checkpointBytes               int64

	autoCreateTopics  bool
	defaultPartitions int
	defaultRetention  time.Duration // negative: for ever
	maxMessageBytes   int64

	maxFrameBytes                       int64
	maxConnections, maxConnectionsPerIP int
	idleTimeout, drainTimeout           time.Duration

	groupInitialDelay                                           time.Duration
	groupMinSessionTimeout, groupMaxSessionTimeout              time.Duration
	groupMaxSize                                                int
	groupConsumerSessionTimeout, groupConsumerHeartbeatInterval time.Duration
	offsetsRetention                                            time.Duration

	memory memorySizes // zero: derived from the memory limit

	logLevel, logFormat string
}

// Categories of help and documentation, in their order there.
const (
	categoryNetwork = "Network"
	categoryStorage = "Storage"
	categoryTopics  = "Topics"
	categoryGroups  = "Consumer groups"
	categoryMemory  = "Memory"
	categoryProcess = "Process"
)

var categories = []string{categoryNetwork, categoryStorage, categoryTopics, categoryGroups, categoryMemory, categoryProcess}

// options returns all settings, each with the field of s that it fills.
func (s *settings) options() []*option {
	return slices.Concat(
		inCategory(categoryNetwork,
			textOption("listen", &s.listen, defaultListen, "`ADDRESS` (host:port) that Kafka clients connect to; an empty host means every address of this machine, and then --advertise is needed"),
			derived(textOption("advertise", &s.advertise, "", "`ADDRESS` (host:port) that clients are told to connect to; they must be able to reach it"), &s.advertise, "the address of --listen"),
			textOption("admin-listen", &s.adminListen, defaultAdminListen, "`ADDRESS` of the HTTP endpoint for operators: /healthz, /readyz, /metrics, and profiles of the process at /debug/pprof/; it has no access control"),
			textOption("http-listen", &s.httpListen, defaultHTTPListen, "`ADDRESS` of the stream API over HTTP, or off; it has no TLS and no access control. If another process has the default address the broker starts without it and says so; an address that is set must be free"),
			textOption("http-origins", &s.httpOrigins, "none", "origins whose web pages may use the stream API (CORS), beside the API's own: a `LIST` such as https://app.example.com,https://example.org, * for all, or none"),
			intOption("http-max-connections", &s.httpMaxConnections, 16384, 1, math.MaxInt32, "open connections to the stream API over HTTP beyond which new ones are closed"),
			derived(bytesOption("max-frame-bytes", &s.maxFrameBytes, mostFrameBytes, mib, 256*mib, "largest request accepted, in `BYTES` (Kafka's socket.request.max.bytes); --request-memory-bytes must be four times as large"), &s.maxFrameBytes, "a quarter of --request-memory-bytes, at most "+formatBytes(mostFrameBytes)),
			intOption("max-connections", &s.maxConnections, 16384, 1, math.MaxInt32, "open Kafka connections beyond which new ones are closed"),
			derived(intOption("max-connections-per-ip", &s.maxConnectionsPerIP, 1, 1, math.MaxInt32, "the same for one client address"), &s.maxConnectionsPerIP, "no limit of its own"),
			durationOption("idle-timeout", &s.idleTimeout, 10*time.Minute, time.Second, "a Kafka connection without requests is closed after this `TIME` (Kafka's connections.max.idle.ms)"),
			intOption("node-id", &s.nodeID, 1, 0, math.MaxInt32, "id of this broker in metadata"),
			textOption("rack", &s.rack, "", "name of the rack or zone of this broker in metadata"),
		),
		inCategory(categoryStorage,
			textOption("data-dir", &s.dataDir, "data", "`FOLDER` for the local database; only one broker may use it at a time"),
			derived(textOption("bucket", &s.bucket, "", "where records are kept: a `URL` (file:///folder, s3://bucket/prefix?region=name, gs://bucket/prefix, azblob://container/prefix?account=name) or the path of a YAML file in thanos-io/objstore format"), &s.bucket, "the folder bucket in --data-dir"),
			choiceOption("durability", &s.durability, []string{durabilityAuto, durabilityLocal, durabilityRemote}, "when a record counts as durable, `MODE`: local (synced to this machine's disk), remote (in the bucket), or auto: local if the bucket is a folder of this machine, else remote"),
			derived(durationOption("flush-interval", &s.flushInterval, time.Second, time.Millisecond, "longest `TIME` until appended records are sent to the bucket; shorter means more requests, which remote buckets charge for"), &s.flushInterval, "250ms with durability remote, 5s with local"),
			bytesOption("flush-bytes", &s.flushBytes, 32*mib, 64*kib, gib, "a flush begins before the interval is over when this many `BYTES` wait"),
			bytesOption("max-unflushed-bytes", &s.maxUnflushedBytes, gib, 64*mib, math.MaxInt64, "writes wait, and at last fail with a retriable error, while this many `BYTES` have not reached the bucket"),
			diskCacheOption(&s.memory.diskCache),
			bytesOption("compaction-bytes", &s.compactionBytes, gib, 64*kib, math.MaxInt64, "short runs of records are merged into segments when this many `BYTES` of them have gathered in the bucket's commit log"),
			durationOption("compaction-interval", &s.compactionInterval, 10*time.Second, 100*time.Millisecond, "`TIME` between two looks for what to compact, and for objects of the bucket to delete"),
			bytesOption("compaction-bandwidth", &s.compactionBandwidth, 64*mib, 64*kib, math.MaxInt64, "`BYTES` a second that compaction writes to the bucket at most"),
			durationOption("delete-grace", &s.deleteGrace, time.Hour, time.Second, "`TIME` for which objects of the bucket are kept after nothing in them is needed any more"),
			durationOption("checkpoint-interval", &s.checkpointInterval, 10*time.Minute, time.Second, "a checkpoint of the metadata is written to the bucket, if anything has changed, when the last one is this old, `TIME`. A start with an empty disk begins with the newest checkpoint"),
			intOption("checkpoint-commits", &s.checkpointCommits, 256, 1, math.MaxInt32, "a checkpoint is also written after this many objects of the commit log; a start with an empty disk reads about twice as many at most"),
			bytesOption("checkpoint-bytes", &s.checkpointBytes, 4*mib, 4*kib, gib, "a checkpoint is also written when the changes of metadata since the last one have this many `BYTES`"),
			durationOption("retention-check-interval", &s.retentionCheckInterval, 5*time.Minute, time.Second, "`TIME` between two looks for records past their retention"),
		),
		inCategory(categoryTopics,
			boolOption("auto-create-topics", &s.autoCreateTopics, true, "create missing topics and streams when a client names them (Kafka's auto.create.topics.enable)"),
			intOption("default-partitions", &s.defaultPartitions, 1, 1, 10_000, "partitions of topics that are created without a number"),
			newOption("default-retention", &s.defaultRetention, "7d", parseRetention, "how long topics keep records unless their retention.ms says otherwise, a `TIME` or forever; named streams are kept for ever unless configured"),
			bytesOption("max-message-bytes", &s.maxMessageBytes, 1048588, 1, 64*mib, "largest record batch accepted unless a topic's max.message.bytes says otherwise, in `BYTES`"),
		),
		inCategory(categoryGroups,
			durationOption("group-initial-rebalance-delay", &s.groupInitialDelay, 3*time.Second, 0, "`TIME` that the first member of a group waits for others to join with it (Kafka's group.initial.rebalance.delay.ms)"),
			durationOption("group-min-session-timeout", &s.groupMinSessionTimeout, 6*time.Second, time.Millisecond, "shortest `TIME` of silence that members may ask for before they count as gone (Kafka's group.min.session.timeout.ms)"),
			durationOption("group-max-session-timeout", &s.groupMaxSessionTimeout, 30*time.Minute, time.Millisecond, "longest such `TIME` (Kafka's group.max.session.timeout.ms)"),
			intOption("group-max-size", &s.groupMaxSize, math.MaxInt32, 1, math.MaxInt32, "most members of one group (Kafka's group.max.size)"),
			durationOption("group-consumer-session-timeout", &s.groupConsumerSessionTimeout, 45*time.Second, 100*time.Millisecond, "`TIME` of silence after which members of groups with the consumer protocol count as gone (Kafka's group.consumer.session.timeout.ms)"),
			durationOption("group-consumer-heartbeat-interval", &s.groupConsumerHeartbeatInterval, 5*time.Second, 100*time.Millisecond, "`TIME` between heartbeats that such members are told to keep (Kafka's group.consumer.heartbeat.interval.ms)"),
			durationOption("offsets-retention", &s.offsetsRetention, 7*24*time.Hour, time.Minute, "`TIME` for which committed offsets are kept after their group has lost its last member (Kafka's offsets.retention.minutes)"),
		),
		inCategory(categoryMemory, s.memory.options()...),
		inCategory(categoryProcess,
			durationOption("drain-timeout", &s.drainTimeout, 30*time.Second, 0, "after a stop signal, the longest `TIME` for finishing requests and flushing to the bucket"),
			newOption("log-level", &s.logLevel, "info", parseLogLevel, "least important `LEVEL` of log lines: debug, info, warn or error"),
			choiceOption("log-format", &s.logFormat, []string{"console", "json"}, "form of log lines on standard error, `FORMAT` console or json"),
		),
	)
}

func inCategory(category string, options ...*option) []*option {
	for _, o := range options {
		o.category = category
	}
	return options
}

func parseLogLevel(text string) (string, error) {
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, text) {
		return "", errors.New("write debug, info, warn or error")
	}
	return text, nil
}

// level is the zap level of --log-level, which parseLogLevel has checked.
func (s *settings) level() zapcore.Level {
	level, err := zapcore.ParseLevel(s.logLevel)
	if err != nil {
		panic(err)
	}
	return level
}

// complete fills in the paths that depend on others and returns everything that is wrong with the settings, memory and
// bucket apart. Each error names what to change.
func (s *settings) complete(options []*option) error {
	var errs []error
	for _, o := range options {
		errs = append(errs, o.problem())
	}
	errs = append(errs, s.completePaths())
	_, err := s.advertised()
	errs = append(errs, err, checkAddress("admin-listen", s.adminListen))
	if s.httpListen != httpOff {
		errs = append(errs, checkAddress("http-listen", s.httpListen))
	}
	errs = append(errs, checkOrigins(s.origins()))
	if s.maxFrameBytes != 0 && s.maxMessageBytes > s.maxFrameBytes-frameOverhead {
		errs = append(errs, fmt.Errorf("--max-message-bytes %s does not fit into --max-frame-bytes %s: raise the second or lower the first",
			formatBytes(s.maxMessageBytes), formatBytes(s.maxFrameBytes)))
	}
	if s.maxUnflushedBytes < s.flushBytes {
		errs = append(errs, fmt.Errorf("--max-unflushed-bytes %s is less than --flush-bytes %s: raise the first or lower the second",
			formatBytes(s.maxUnflushedBytes), formatBytes(s.flushBytes)))
	}
	if s.groupMinSessionTimeout > s.groupMaxSessionTimeout {
		errs = append(errs, fmt.Errorf("--group-min-session-timeout %s is more than --group-max-session-timeout %s: raise the second or lower the first",
			formatDuration(s.groupMinSessionTimeout), formatDuration(s.groupMaxSessionTimeout)))
	}
	if s.groupConsumerHeartbeatInterval >= s.groupConsumerSessionTimeout {
		errs = append(errs, fmt.Errorf("--group-consumer-heartbeat-interval %s is not less than --group-consumer-session-timeout %s: members would count as gone between two heartbeats",
			formatDuration(s.groupConsumerHeartbeatInterval), formatDuration(s.groupConsumerSessionTimeout)))
	}
	return errors.Join(errs...)
}

// mostFrameBytes is the largest request accepted where memory is no reason for less, Kafka's default.
const mostFrameBytes = 100 * mib

// completeMemory divides the memory, and sees to it that the largest request fits into the memory for requests.
func (s *settings) completeMemory(limit memoryLimit) error {
	s.memory.frame = cmp.Or(s.maxFrameBytes, s.maxMessageBytes+frameOverhead)
	if err := s.memory.complete(limit, s.flushBytes); err != nil {
		return err
	}
	most, _ := kafkaproto.FrameLimits(s.memory.request)
	if s.memory.frame > most {
		setting := "--max-frame-bytes " + formatBytes(s.maxFrameBytes)
		if s.maxFrameBytes == 0 {
			setting = "--max-message-bytes " + formatBytes(s.maxMessageBytes)
		}
		return fmt.Errorf("%s needs --request-memory-bytes %d, which is %s: lower the first or raise the second",
			setting, requestMemoryFor(s.memory.frame), formatBytes(s.memory.request))
	}
	if s.maxFrameBytes == 0 {
		s.maxFrameBytes = min(most, mostFrameBytes)
	}
	return nil
}

// mostControlFrameBytes is enough for a fetch of 50,000 partitions.
const mostControlFrameBytes = 4 * mib

// maxControlFrameBytes is the largest request accepted but for Produce.
func (s *settings) maxControlFrameBytes() int64 {
	_, most := kafkaproto.FrameLimits(s.memory.request)
	return min(most, mostControlFrameBytes)
}

// frameOverhead is room for the parts of a Produce request around the largest batch.
const frameOverhead = 64 * kib

func (s *settings) completePaths() error {
	if s.dataDir == "" {
		return errors.New("--data-dir is empty: set it to a folder for the local database")
	}
	dir, err := filepath.Abs(s.dataDir)
	if err != nil {
		return fmt.Errorf("--data-dir %s: write an absolute path: %w", s.dataDir, err)
	}
	s.dataDir, s.bucketSetting = dir, "--bucket"
	if s.bucket == "" {
		s.bucketSetting = "bucket in --data-dir " + dir
		s.bucket = (&url.URL{Scheme: "file", Path: filepath.Join(dir, "bucket")}).String()
	}
	return nil
}

// completeBucket checks the address of the bucket and resolves the durability auto. It asks a remote bucket nothing; that
// is done later, and repeated, because a bucket may be out of reach for a while.
func (s *settings) completeBucket(ctx context.Context) error {
	b, err := objstore.Open(ctx, objstore.Options{URL: s.bucket, SkipProbe: true})
	if err != nil {
		return fmt.Errorf("%s: %w", s.bucketSetting, err)
	}
	s.bucketLocation, s.bucketLocal = b.Location(), b.Local()
	if s.durability == durabilityAuto && b.Local() {
		s.durability = durabilityLocal
	} else if s.durability == durabilityAuto {
		s.durability = durabilityRemote
	}
	return b.Close()
}

// storeDurability is --durability once auto is resolved.
func (s *settings) storeDurability() streamstore.Durability {
	if s.durability == durabilityRemote {
		return streamstore.Remote
	}
	return streamstore.Local
}

// unknownVariables returns the names of variables that look like settings and are none. environment holds NAME=value
// lines.
func unknownVariables(environment []string, options []*option) []string {
	known := map[string]bool{brokersVariable: true} // of the commands that ask a broker
	for _, o := range options {
		known[o.env()] = true
	}
	var unknown []string
	for _, line := range environment {
		name, _, _ := strings.Cut(line, "=")
		if strings.HasPrefix(name, envPrefix) && !known[name] {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	return unknown
}
