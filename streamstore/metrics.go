package streamstore

import (
	"math"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/brookletmq/brooklet/streamstore/diskcache"
)

// metrics of a store. None has a label that grows with the number of streams.
type metrics struct {
	registerer    prometheus.Registerer
	counters      []prometheus.Collector
	groups        prometheus.Counter
	groupAppends  prometheus.Counter
	commits       prometheus.Counter
	commitBytes   prometheus.Counter
	commitNumber  *gaugeValue
	backpressure  prometheus.Counter
	segmentHits   prometheus.Counter
	segmentMisses prometheus.Counter
	segmentBytes  prometheus.Counter
	expired       prometheus.Counter

	compactions        prometheus.Counter
	compactionFailures prometheus.Counter
	compactionRead     prometheus.Counter
	compactionWritten  prometheus.Counter
	objectsDeleted     prometheus.Counter
	deleteFailures     prometheus.Counter

	checkpoints        prometheus.Counter
	checkpointBytes    prometheus.Counter
	checkpointFailures prometheus.Counter
}

// gaugeValue is a gauge that its owner can read back.
type gaugeValue struct{ bits atomic.Uint64 }

// Set sets the gauge.
func (g *gaugeValue) Set(v float64) { g.bits.Store(math.Float64bits(v)) }

func (g *gaugeValue) value() float64 { return math.Float64frombits(g.bits.Load()) }

func (m *metrics) commitNumberValue() float64 { return m.commitNumber.value() }

func newMetrics(registerer prometheus.Registerer) *metrics {
	m := &metrics{registerer: registerer, commitNumber: &gaugeValue{}}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: "brooklet", Subsystem: "streamstore", Name: name, Help: help})
		m.counters = append(m.counters, c)
		return c
	}
	m.groups = counter("append_groups_total", "Groups of appends written to the local database together.")
	m.groupAppends = counter("appends_total", "Appends and transactions written to the local database.")
	m.commits = counter("commits_total", "Commits that became durable in the bucket.")
	m.commitBytes = counter("commit_bytes_total", "Bytes of log objects of commits that became durable in the bucket.")
	m.backpressure = counter("append_waits_total", "Appends that had to wait because too many bytes were unflushed.")
	m.segmentHits = counter("segment_cache_hits_total", "Extents found in the segment cache in memory, or on their way there.")
	m.segmentMisses = counter("segment_cache_misses_total", "Reads of extents that went to the bucket.")
	m.segmentBytes = counter("segment_read_bytes_total", "Bytes of extents read from the bucket.")
	m.expired = counter("expired_streams_total", "Times that retention moved a stream's start offset.")
	m.compactions = counter("compactions_total", "Compactions that ended well.")
	m.compactionFailures = counter("compaction_failures_total", "Compactions that failed; what they had not moved yet is tried again.")
	m.compactionRead = counter("compaction_read_bytes_total", "Bytes that compaction read from the bucket.")
	m.compactionWritten = counter("compaction_written_bytes_total", "Bytes of segments that compaction wrote to the bucket.")
	m.objectsDeleted = counter("deleted_objects_total", "Objects without live records that were deleted from the bucket.")
	m.deleteFailures = counter("delete_failures_total", "Deletions of objects that failed and are tried again.")
	m.checkpoints = counter("checkpoints_total", "Checkpoints written to the bucket.")
	m.checkpointBytes = counter("checkpoint_bytes_total", "Bytes of checkpoints written to the bucket.")
	m.checkpointFailures = counter("checkpoint_failures_total", "Failed attempts to write or delete checkpoints.")
	return m
}

// observe registers the metrics, once the store is open. The gauges take short locks,
// none that an append holds across I/O.
func (m *metrics) observe(s *Store) {
	if m.registerer == nil {
		return
	}
	m.registerer.MustRegister(m.counters...)
	gauge := func(name, help string, value func() float64) {
		m.registerer.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "brooklet", Subsystem: "streamstore", Name: name, Help: help}, value))
	}
	gauge("commit_number", "Number of the newest durable commit.", m.commitNumber.value)
	gauge("epoch", "Epoch: the number under which this broker opened the bucket, higher than that of any broker that did so before.", func() float64 { return float64(s.epoch) })
	gauge("unflushed_appends", "Appends that are not in the bucket yet.", func() float64 {
		return float64(s.queue.nextNumber() - s.flusher.durable.Load())
	})
	gauge("unflushed_bytes", "Bytes of appends that are not in the bucket yet, with what they take beside their records.", func() float64 { return float64(s.unflushed.taken.Load()) })
	gauge("flush_lag_seconds", "Age of the oldest append that is not in the bucket yet, 0 if there is none.", func() float64 {
		oldest := s.flusher.oldest.Load()
		if oldest == 0 {
			return 0
		}
		return max(0, float64(s.opts.Now().UnixMilli()-oldest)/1000)
	})
	gauge("recovery_seconds", "Time that opening the store took, when the broker started.", func() float64 { return s.recovery.Took.Seconds() })
	gauge("recovery_replayed_commits", "Objects of the commit log that were replayed when the store was opened.", func() float64 { return float64(s.recovery.ReplayedCommits) })
	total := func(name, help string, value *atomic.Int64) {
		m.registerer.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "brooklet", Subsystem: "streamstore", Name: name, Help: help},
			func() float64 { return float64(value.Load()) }))
	}
	total("appended_bytes_total", "Bytes of record batches written to the local database.", &s.traffic.appended)
	total("read_bytes_total", "Bytes of record batches that reads returned, wherever they came from.", &s.traffic.read)
	gauge("watched", "Streams and prefixes that readers wait for, each as often as it is waited for.", func() float64 { return float64(s.traffic.watching.Load()) })
	gauge("tail_cache_bytes", "Appended bytes kept in memory.", func() float64 { return float64(s.tailCache.size()) })
	gauge("segment_cache_bytes", "Bytes of extents kept in memory.", func() float64 { return float64(s.segments.size()) })
	gauge("bucket_objects", "Objects of the commit log and segments that the store knows.", func() float64 { return float64(s.catalogue.totals().objects) })
	gauge("bucket_bytes", "Bytes of records in the objects of the commit log and segments that the store knows.", func() float64 { return float64(s.catalogue.totals().bytes) })
	gauge("live_bytes", "Bytes of records in the objects of the commit log and segments that can still be read.", func() float64 { return float64(s.catalogue.totals().live) })
	gauge("compaction_backlog_bytes", "Bytes of short runs in the commit log that are yet to be compacted.", func() float64 { return float64(s.catalogue.totals().backlog) })
	m.observeDisk(s.segments.disk)
	gauge("streams_in_memory", "Streams in use or lately used.", func() float64 { return float64(s.streams.len()) })
	gauge("memtable_bytes", "Memory of the local database's memtables, bounded by their size and number.", func() float64 { return float64(s.db.Metrics().MemTable.Size) })
	gauge("block_cache_bytes", "Memory of the local database's block cache, which may use what its memtables leave of theirs.", func() float64 { return float64(s.db.Metrics().BlockCache.Size) })
	gauge("database_disk_bytes", "Size of the local database on disk, its log included.", func() float64 { return float64(s.db.Metrics().DiskSpaceUsage()) })
	gauge("checkpoint_age_seconds", "Time since the newest checkpoint was made, 0 if there is none.", func() float64 { return s.checkpoints.age().Seconds() })
	gauge("checkpoint_pending_bytes", "Changes of metadata in the log since the newest checkpoint.", func() float64 { return float64(s.checkpoints.pendingBytes()) })
	gauge("covered_commit", "Log objects below this number are not needed any more to rebuild the store.", func() float64 { return float64(s.coveredBelow()) })
	gauge("failed", "1 if the store takes no more writes.", func() float64 {
		if s.Err() != nil {
			return 1
		}
		return 0
	})
}

// observeDisk registers what the disk cache counts.
func (m *metrics) observeDisk(disk *diskcache.Cache) {
	if disk == nil {
		return
	}
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "brooklet", Subsystem: "streamstore", Name: "disk_cache_" + name, Help: help}
	}
	counter := func(name, help string, value func(diskcache.Metrics) int64) {
		m.registerer.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts(opts(name, help)), func() float64 { return float64(value(disk.Metrics())) }))
	}
	gauge := func(name, help string, value func(diskcache.Metrics) int64) {
		m.registerer.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts(opts(name, help)), func() float64 { return float64(value(disk.Metrics())) }))
	}
	gauge("bytes", "Size of the files of the disk cache.", func(d diskcache.Metrics) int64 { return d.Bytes })
	gauge("entries", "Extents in the disk cache.", func(d diskcache.Metrics) int64 { return d.Entries })
	counter("hits_total", "Extents read from the disk cache.", func(d diskcache.Metrics) int64 { return d.Hits })
	counter("misses_total", "Extents that were in the disk cache and could not be read there.", func(d diskcache.Metrics) int64 { return d.Misses })
	counter("read_bytes_total", "Bytes of extents read from the disk cache.", func(d diskcache.Metrics) int64 { return d.ReadBytes })
	counter("written_bytes_total", "Bytes written to the disk cache.", func(d diskcache.Metrics) int64 { return d.WrittenBytes })
	counter("evicted_bytes_total", "Bytes of files that the disk cache has removed.", func(d diskcache.Metrics) int64 { return d.EvictedBytes })
	counter("dropped_total", "Extents not written to the disk cache, because the disk was too slow, full or failing.", func(d diskcache.Metrics) int64 { return d.Dropped })
	counter("errors_total", "Failed reads and writes of the disk cache, and damaged entries.", func(d diskcache.Metrics) int64 { return d.Errors })
}
