package streamstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"

	"github.com/brookletmq/brooklet/objstore"
)

// Recovery tells what Open found and did.
type Recovery struct {
	Epoch           uint64        // claimed by this writer
	Commit          uint64        // number of the log object that is the claim
	ReplayedCommits int           // log objects that the disk had not seen
	TailAppends     int           // unflushed appends and transactions found on the disk
	SetAside        string        // file with unflushed appends and transactions that could not be kept; "" if none
	SetAsideAppends int           // how many
	Checkpoint      uint64        // commit of the checkpoint from which the local database was rebuilt; 0 if it was not
	FetchedBytes    int64         // read from the bucket: parts of the checkpoint and objects of the log
	Took            time.Duration // from start to claimed
}

// Open recovers the shard from disk and bucket, claims it, and returns a store
// that takes writes. It waits for a bucket that is throttled or unreachable until
// ctx ends.
//
//  1. Open the local database; it has followed the log up to its position row. If it
//     is new, or log objects after its position may have been cleaned up already,
//     rebuild it from the newest checkpoint (coldstart.go).
//  2. Follow the log: apply every live object after that position. One of our own
//     (its nonce is in the claims row) covers a part of the local tail. One of
//     another writer while we hold a tail means that the tail never happened:
//     set it aside in a file, begin again with an empty database.
//  3. Claim: write down the new nonce, create the next object with a higher epoch;
//     if its number is taken, go back to 1. Then look again for a higher epoch, and
//     for checkpoints above the claim.
//  4. Load the tail into memory and go on.
func Open(ctx context.Context, opts Options) (*Store, error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, fmt.Errorf("store options: %w", err)
	}
	s := &Store{
		opts:         opts,
		log:          opts.Logger,
		metrics:      newMetrics(opts.Registerer),
		codec:        newStateCodec(),
		failed:       make(chan struct{}),
		stopAppender: make(chan struct{}),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.tailCache.budget = opts.TailCacheBytes
	s.segments = newSegmentCache(s)
	s.catalogue = newCatalogue(s)
	s.compactor = newCompactor(s)
	s.queue.signal = make(chan struct{}, 1)
	s.appender = appender{store: s, syncing: make(chan appendGroup, maxSyncingGroups)}
	s.flusher = newFlusher(s)
	s.checkpoints = newCheckpointer(s)
	started := bootTime()
	if err := s.recoverOrFail(ctx); err != nil {
		s.cancel()
		if errors.Is(err, ErrFailed) {
			return nil, err // the database cannot be closed in order; see Close
		}
		if s.db != nil {
			s.guard.active.Store(false)
			err = errors.Join(err, s.witness.close(), s.db.Close())
		}
		return nil, errors.Join(err, s.lock.Close())
	}
	s.recovery.Took, s.recovery.FetchedBytes = bootTime()-started, s.fetchedBytes.Load()
	s.metrics.observe(s)
	s.start()
	return s, nil
}

// Recovery tells what Open found and did.
func (s *Store) Recovery() Recovery { return s.recovery }

// recoverOrFail is recover, and returns when the database fails for good: then the
// goroutine of recover never does (see pebbleLogger).
func (s *Store) recoverOrFail(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- s.recover(ctx) }()
	select {
	case err := <-done:
		return s.explainDamage(err)
	case <-s.failed:
		return s.Err()
	}
}

func (s *Store) recover(ctx context.Context) error {
	if err := s.lockBucket(); err != nil {
		return err
	}
	if err := s.openDatabase(); err != nil {
		return err
	}
	for {
		err := s.followAndClaim(ctx)
		switch {
		case errors.Is(err, errForeignClaim):
			if err := s.setTailAside(); err != nil {
				return err
			}
		case err == nil:
			return s.openDiskCache()
		case !errors.Is(err, errClaimLost):
			return err
		}
	}
}

// lockBucket keeps a second writer of this machine away from a bucket folder. With
// local durability it would learn from the bucket only at its next flush that there
// are two; with remote durability the bucket decides before each acknowledgement,
// and a new writer may take over at any time.
func (s *Store) lockBucket() (err error) {
	s.lock = io.NopCloser(nil)
	if s.opts.Durability == Remote {
		return nil
	}
	lock, err := objstore.Lock(s.opts.Bucket, shardDir(s.opts.Shard))
	if err != nil {
		return fmt.Errorf("with local durability only one store may use the bucket folder (stop the other one, or use remote durability for both): %w", err)
	}
	s.lock = lock
	return nil
}

// followAndClaim brings the database to the end of the log and claims the shard.
func (s *Store) followAndClaim(ctx context.Context) error {
	f, err := s.catchUp(ctx)
	if err != nil {
		return err
	}
	position, err := s.claim(ctx, f)
	if err != nil {
		return err
	}
	return s.loadTail(position)
}

// catchUp brings the database to the end of the log, from a checkpoint if need be. It
// changes nothing in the bucket. errClaimLost: log or checkpoints were cleaned up
// meanwhile, call it again.
func (s *Store) catchUp(ctx context.Context) (*follower, error) {
	var f *follower
	checkpoints, err := s.prepareDisk(ctx)
	if err == nil {
		f, err = s.followLog(ctx)
	}
	if err == nil {
		err = f.checkReached(checkpoints)
	}
	if errors.Is(err, ErrCorrupt) {
		err = s.cleanedMeanwhile(ctx, checkpoints, err)
	}
	return f, err
}

// openDatabase opens or creates the local database.
func (s *Store) openDatabase() error {
	if err := makeDir(s.opts.FS, s.opts.Dir); err != nil {
		return fmt.Errorf("data directory %s: %w", s.opts.Dir, err)
	}
	if err := s.opts.FS.RemoveAll(s.opts.outdatedDir()); err != nil {
		return fmt.Errorf("removing an outdated database: %w", err)
	}
	if err := s.opts.FS.RemoveAll(s.opts.scratchDir()); err != nil {
		return fmt.Errorf("removing what a compaction left behind: %w", err)
	}
	if err := s.freeBallast(); err != nil {
		return err
	}
	if err := s.checkManifest(); err != nil {
		return err
	}
	s.guard = newLogGuard(s)
	db, err := pebble.Open(s.opts.dbDir(), s.pebbleOptions(s.guard))
	if err != nil {
		err = fmt.Errorf("opening the database in %s: %w", s.opts.dbDir(), err)
		if system := syscall.Errno(0); !pebble.IsCorruptionError(err) && !errors.As(err, &system) {
			err = fmt.Errorf("%w; if a file there is damaged, %s", err, damageAdvice) // explainDamage knows of the others
		}
		return err
	}
	s.guard.active.Store(true)
	s.db = db
	s.reserveBallast()
	return s.checkWitness()
}

// makeDir makes a folder and those above it, and syncs each new entry: a synced
// file in a folder whose own entry is lost with the power is lost as well.
func makeDir(fs vfs.FS, dir string) error {
	if _, err := fs.Stat(dir); err == nil {
		return nil
	}
	parent := fs.PathDir(dir)
	if parent != dir {
		if err := makeDir(fs, parent); err != nil {
			return err
		}
	}
	if err := fs.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return syncDir(fs, parent)
}

func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

const (
	// memTableBytes is the size of one memtable. Tail entries that are flushed to
	// the bucket and deleted before their memtable is written cost no table I/O;
	// the larger it is beside Options.FlushBytes, the fewer are written (measured at
	// full speed: 7% of the appended bytes with twice that, 4% with four times).
	memTableBytes    = 64 << 20
	maxMemTables     = 4
	bloomBitsPerKey  = 10
	levelOneMaxBytes = 256 << 20
)

func (s *Store) pebbleOptions(fs vfs.FS) *pebble.Options {
	o := &pebble.Options{
		FS: fs,
		// Pebble takes the size of the memtables off that of its block cache. Without room
		// for them the cache would keep nothing while writes go on, and every look at a row
		// would read and check blocks of tables.
		CacheSize:                   s.opts.BlockCacheBytes + maxMemTables*memTableBytes,
		FormatMajorVersion:          pebble.FormatNewest,
		Logger:                      pebbleLogger{s},
		MemTableSize:                memTableBytes,
		MemTableStopWritesThreshold: maxMemTables,
		LBaseMaxBytes:               levelOneMaxBytes,
		L0CompactionThreshold:       4,
		L0StopWritesThreshold:       1000,
	}
	for i := range o.Levels {
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(bloomBitsPerKey)
	}
	o.EventListener = &pebble.EventListener{
		BackgroundError: func(err error) { s.log.Error("database", zap.Error(err)) },
		DataCorruption:  s.reportDamage,
		WriteStallBegin: func(info pebble.WriteStallBeginInfo) {
			s.log.Warn("database stalls writes", zap.String("reason", info.Reason))
		},
	}
	return o
}

// pebbleLogger passes Pebble's messages on. A fatal one stops the store: Pebble
// calls Fatalf where it cannot go on and expects it not to return, so the calling
// goroutine stays here for ever.
type pebbleLogger struct{ s *Store }

func (l pebbleLogger) Infof(format string, args ...any) {
	l.s.log.Debug("database", zap.String("message", fmt.Sprintf(format, args...)))
}

func (l pebbleLogger) Errorf(format string, args ...any) {
	l.s.log.Warn("database", zap.String("message", fmt.Sprintf(format, args...)))
}

func (l pebbleLogger) Fatalf(format string, args ...any) {
	// What is behind the first line is the stack of goroutines that Pebble ran in.
	message, stack, _ := strings.Cut(fmt.Sprintf(format, args...), "\n")
	l.s.log.Debug("database", zap.String("message", message), zap.String("stack", stack))
	l.s.fail(fmt.Errorf("%w: database in %s: %s", ErrFailed, l.s.opts.Dir, message))
	select {}
}

// The ballast is a file that is given up when the disk is full, so that the
// database can be opened then: it needs a little room for its own new files.
const ballastBytes = 64 << 20

func (o *Options) ballastPath() string { return o.Dir + "/ballast" }

func (s *Store) freeBallast() error {
	usage, err := s.opts.FS.GetDiskUsage(s.opts.Dir)
	if err != nil || usage.AvailBytes >= ballastBytes {
		return nil
	}
	s.log.Warn("the disk is full, giving up the ballast file to start", zap.String("file", s.opts.ballastPath()))
	if err := s.opts.FS.Remove(s.opts.ballastPath()); err != nil && !errors.Is(err, vfs.ErrUnsupported) {
		s.log.Warn("ballast", zap.Error(err))
	}
	return nil
}

// reserveBallast makes the ballast file when there is ample room. It is only a
// help, so a failure is no more than logged.
func (s *Store) reserveBallast() {
	usage, err := s.opts.FS.GetDiskUsage(s.opts.Dir)
	if err != nil || s.opts.MinFreeBytes < 0 || usage.AvailBytes < uint64(s.opts.MinFreeBytes)+2*ballastBytes {
		return
	}
	if info, err := s.opts.FS.Stat(s.opts.ballastPath()); err == nil && info.Size() == ballastBytes {
		return
	}
	if err := writeBallast(s.opts.FS, s.opts.ballastPath()); err != nil {
		s.log.Warn("reserving the ballast file", zap.Error(err))
	}
}

func writeBallast(fs vfs.FS, path string) error {
	file, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	chunk := make([]byte, 1<<20)
	for range ballastBytes / len(chunk) {
		if _, err := file.Write(chunk); err != nil {
			return errors.Join(err, file.Close(), fs.Remove(path))
		}
	}
	return errors.Join(file.Sync(), file.Close())
}

func newNonce() (n nonce) {
	_, _ = rand.Read(n[:]) // never fails (crypto/rand)
	return n
}
