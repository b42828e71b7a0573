package streamstore

import (
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/brookletmq/brooklet/objstore"
)

// Durability says when a record counts as durable: when readers see it and when
// an append with AckDurable is acknowledged.
type Durability int8

const (
	// Local: synced to this machine's disk.
	Local Durability = iota
	// Remote: in the bucket. The local disk is then only a cache.
	Remote
)

func (d Durability) String() string {
	if d == Remote {
		return "remote"
	}
	return "local"
}

// Options configure a Store. The zero value of a field means its default,
// which EnsureDefaults fills in.
type Options struct {
	// Dir is the folder of the local database. Required.
	Dir string
	// FS is the file system that holds Dir. Default: the operating system's.
	FS vfs.FS
	// Bucket holds the commit log. Required; the store does not close it.
	Bucket objstore.Bucket
	// Shard is the number of the commit log in the bucket. Default 0.
	Shard uint32
	// Durability. Default Local.
	Durability Durability
	// FlushInterval is the longest time that an append waits before it is sent
	// to the bucket. Default 5 s for Local, 250 ms for Remote. At least 1 ms.
	FlushInterval time.Duration
	// FlushBytes starts a flush before the interval is over. Default 32 MiB.
	FlushBytes int64
	// MaxUnflushedBytes bounds the bytes that wait for the bucket; appends then
	// wait for room and fail with ErrBackpressure. Default 1 GiB.
	MaxUnflushedBytes int64
	// MaxBatchBytes bounds one record batch. Default 64 MiB.
	MaxBatchBytes int64
	// TailCacheBytes bounds the appended batches kept in memory for readers and
	// for the flusher. Default 256 MiB.
	TailCacheBytes int64
	// SegmentCacheBytes bounds the bytes read from the bucket that are kept in
	// memory. Default 256 MiB.
	SegmentCacheBytes int64
	// DiskCacheBytes bounds the files in Dir in which extents that are read again and
	// again are kept, below the segment cache. It pays for a bucket that is not on this
	// machine. Its index takes DiskCacheMemory bytes of memory. Default 0: no files.
	DiskCacheBytes int64
	// BlockCacheBytes is the size of Pebble's block cache when the memtables have
	// their largest size, 256 MiB together. While they are smaller, the cache may use
	// their room as well. Default 64 MiB.
	BlockCacheBytes int64
	// CompactionBytes is how many bytes of short runs gather in the commit log before
	// they are merged into segments. More means fewer rewrites and more small reads of
	// recent history. Default 1 GiB.
	CompactionBytes int64
	// CompactionInterval is the time between two looks for something to compact, and for
	// objects to delete. Default 10 s, at least 1 ms.
	CompactionInterval time.Duration
	// CompactionBandwidth bounds what compaction writes, in bytes per second. Default
	// 64 MiB/s; negative: unlimited.
	CompactionBandwidth int64
	// CompactionMemory bounds what compaction keeps in memory, in bytes: two thirds of it
	// for the segment that it makes and the one on its way to the bucket, the rest for what
	// it reads. An object of a remote bucket comes on top while it is fetched. Default
	// 192 MiB, at least 1 MiB.
	CompactionMemory int64
	// DeleteGrace is how long an object of the bucket that is no longer needed is kept
	// for readers that may still use it, and against writers that do not know yet that
	// they were fenced. Objects that are mostly dead are not rewritten before they are
	// as old. Default 1 h; negative: none, for tests.
	DeleteGrace time.Duration
	// ProducerExpiry is how long the state of an idle idempotent producer is
	// kept, as Kafka's producer.id.expiration.ms. Default 24 h.
	ProducerExpiry time.Duration
	// RetentionInterval is the time between two passes of retention, as Kafka's
	// log.retention.check.interval.ms. Default 5 min.
	RetentionInterval time.Duration
	// FenceCheckAfter: an upload that took longer looks for a newer writer
	// before anything is acknowledged. Default 10 s.
	FenceCheckAfter time.Duration
	// CheckpointBytes: a checkpoint is made when the changes of metadata since the
	// last one, as they are in the log, have this many bytes. It begins anew with all of
	// the metadata when the changes since it last did so are twice that, and as much as
	// the metadata. Default 4 MiB.
	CheckpointBytes int64
	// CheckpointCommits: a checkpoint is made after this many commits. A start with
	// an empty disk reads at most about twice this many log objects. Default 256.
	CheckpointCommits int
	// CheckpointBaseCommits: a checkpoint begins anew with all of the metadata also after
	// this many commits. The log is kept from the last checkpoint before that on, so that
	// damage to what the newest ones share can be made up for. Default 8192.
	CheckpointBaseCommits int
	// CheckpointInterval: a checkpoint is made when the last one is this old and there
	// were commits since. Default 10 min.
	CheckpointInterval time.Duration
	// CheckpointBandwidth bounds the bytes per second at which the tables of a
	// checkpoint are built and uploaded. Default 32 MiB/s.
	CheckpointBandwidth int64
	// MinFreeBytes: with less free space on the disk of Dir, appends are
	// refused with ErrBackpressure; trims, deletions and changes of settings, which
	// may make room, with less than a quarter of it. Default 256 MiB; negative: no
	// check.
	MinFreeBytes int64
	// Now tells the time that is written into commits and compared by
	// retention. Default time.Now.
	Now func() time.Time
	// Logger. Default: none.
	Logger *zap.Logger
	// Registerer takes the store's metrics. Default: none are registered.
	Registerer prometheus.Registerer

	compaction compactionPolicy // zero: the default; tests change it
}

// EnsureDefaults fills unset fields in.
func (o *Options) EnsureDefaults() {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.FlushInterval == 0 {
		o.FlushInterval = 5 * time.Second
		if o.Durability == Remote {
			o.FlushInterval = 250 * time.Millisecond
		}
	}
	setDefault(&o.FlushBytes, 32<<20)
	setDefault(&o.MaxUnflushedBytes, 1<<30)
	setDefault(&o.MaxBatchBytes, 64<<20)
	setDefault(&o.TailCacheBytes, 256<<20)
	setDefault(&o.SegmentCacheBytes, 256<<20)
	setDefault(&o.BlockCacheBytes, 64<<20)
	setDefault(&o.CompactionBytes, 1<<30)
	setDefault(&o.CompactionBandwidth, 64<<20)
	setDefault(&o.CompactionMemory, 192<<20)
	setDefault(&o.DeleteGrace, time.Hour)
	setDefault(&o.CompactionInterval, 10*time.Second)
	setDefault(&o.compaction, defaultCompactionPolicy(o.DeleteGrace))
	setDefault(&o.compaction.interval, o.CompactionInterval)
	setDefault(&o.compaction.bytes, o.CompactionBytes)
	setDefault(&o.compaction.output, min(maxSegmentBytes, o.CompactionMemory/3))
	setDefault(&o.ProducerExpiry, 24*time.Hour)
	setDefault(&o.RetentionInterval, 5*time.Minute)
	setDefault(&o.FenceCheckAfter, 10*time.Second)
	setDefault(&o.CheckpointBytes, 4<<20)
	setDefault(&o.CheckpointCommits, 256)
	setDefault(&o.CheckpointBaseCommits, 8192)
	setDefault(&o.CheckpointInterval, 10*time.Minute)
	setDefault(&o.CheckpointBandwidth, 32<<20)
	setDefault(&o.MinFreeBytes, 256<<20)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate reports everything that is wrong with the options at once.
func (o *Options) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(o.Dir != "", "the data directory is not set")
	check(o.Bucket != nil, "the bucket is not set")
	check(o.Durability == Local || o.Durability == Remote, "unknown durability %d", o.Durability)
	check(o.FlushInterval >= time.Millisecond, "flush interval %v is too short, the least is 1ms", o.FlushInterval)
	check(o.FlushBytes > 0, "flush bytes must be positive, not %d", o.FlushBytes)
	check(o.MaxBatchBytes >= batchHeaderSize, "max batch bytes %d is less than a batch header", o.MaxBatchBytes)
	check(o.MaxUnflushedBytes >= o.MaxBatchBytes, "max unflushed bytes %d is less than max batch bytes %d: raise the first or lower the second", o.MaxUnflushedBytes, o.MaxBatchBytes)
	check(o.MaxUnflushedBytes >= o.FlushBytes, "max unflushed bytes %d is less than flush bytes %d: raise the first or lower the second", o.MaxUnflushedBytes, o.FlushBytes)
	check(o.TailCacheBytes > 0, "tail cache bytes must be positive, not %d", o.TailCacheBytes)
	check(o.SegmentCacheBytes > 0, "segment cache bytes must be positive, not %d", o.SegmentCacheBytes)
	check(o.DiskCacheBytes >= 0, "disk cache bytes must not be negative, but are %d", o.DiskCacheBytes)
	check(o.BlockCacheBytes > 0, "block cache bytes must be positive, not %d", o.BlockCacheBytes)
	check(o.CompactionBytes > 0, "compaction bytes must be positive, not %d", o.CompactionBytes)
	check(o.CompactionInterval >= time.Millisecond, "compaction interval %v is too short, the least is 1ms", o.CompactionInterval)
	check(o.CompactionMemory >= 1<<20, "compaction memory must be at least 1 MiB, not %d bytes", o.CompactionMemory)
	check(o.ProducerExpiry > 0, "producer expiry must be positive, not %v", o.ProducerExpiry)
	check(o.CheckpointBytes > 0, "checkpoint bytes must be positive, not %d", o.CheckpointBytes)
	check(o.CheckpointCommits > 0, "checkpoint commits must be positive, not %d", o.CheckpointCommits)
	check(o.CheckpointBaseCommits > 0, "checkpoint base commits must be positive, not %d", o.CheckpointBaseCommits)
	check(o.CheckpointInterval > 0, "checkpoint interval must be positive, not %v", o.CheckpointInterval)
	check(o.CheckpointBandwidth > 0, "checkpoint bandwidth must be positive, not %d", o.CheckpointBandwidth)
	check(o.RetentionInterval > 0, "retention interval must be positive, not %v", o.RetentionInterval)
	return errors.Join(errs...)
}
