package streamstore

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/brookletmq/brooklet/objstore"
)

// BucketOptions say which shard CheckBucket and CollectGarbage look at, and where they
// work.
type BucketOptions struct {
	// Bucket holds the shard. Required; CheckBucket only reads.
	Bucket objstore.Bucket
	// Shard is the number of the commit log in the bucket.
	Shard uint32
	// Dir is a folder for a database that is built from the log: new or empty, and not
	// the one of a store. Required.
	Dir string
	// FS is the file system that holds Dir. Default: the operating system's.
	FS vfs.FS
	// Now tells the time that the age of objects is measured by. Default time.Now.
	Now func() time.Time
	// Logger. Default: none.
	Logger *zap.Logger
}

// BucketReport is what was found in a bucket.
type BucketReport struct {
	Commit uint64 // newest live object of the log
	Epoch  uint64 // of the newest writer

	Streams, Extents int64
	LogObjects       int64 // in the bucket
	Segments         int64
	Checkpoints      int64
	CheckpointParts  int64
	BucketBytes      int64 // of these objects
	LiveBytes        int64 // of record batches that readers can get
	CheckedObjects   int64 // whose live batches were read and checked

	Problems []BucketProblem
	Garbage  []GarbageObject
}

// BucketProblem is something that a reader of the bucket would stumble over.
type BucketProblem struct {
	Object string // name; "" if the index itself is wrong
	Stream string // name; "" if unknown, more than one is affected, or a checkpoint is damaged
	Base   int64  // first and last offset of the records; both 0 for a checkpoint
	Last   int64
	Err    error
}

// GarbageObject is an object that nothing names.
type GarbageObject struct {
	Name    string
	Bytes   int64
	Created time.Time // zero: unknown
	// InUse tells why it may still become part of the store: "" if it never can.
	InUse   string
	Deleted bool // by CollectGarbage
	// Checkpoint says that it is an obsolete checkpoint. Its parts are no garbage before
	// it is deleted.
	Checkpoint bool

	since time.Time // when it became garbage at the latest; zero: unknown
}

// bucketView is a read-only look at a shard: its index as of the end of the log, in a
// database of its own.
type bucketView struct {
	store    *Store
	follower *follower
	report   BucketReport
	listed   []objstore.ObjectInfo // segments, from before the index was built
	log      []objstore.ObjectInfo // so are these
	parts    []objstore.ObjectInfo
	numbers  []uint64 // of the checkpoints then
	kept     kept     // of these, proved to be whole
	problems struct {
		sync.Mutex
		list []extentProblem
	}
}

type extentProblem struct {
	extent streamExtent
	err    error
}

// CheckBucket proves that a shard can be read as its index says: every extent is there,
// every batch has the right checksum, offsets have no gaps, and every segment is
// accounted for. It claims nothing and changes nothing, and a live writer need not be
// stopped; what that one removes meanwhile is no problem.
func CheckBucket(ctx context.Context, opts BucketOptions) (BucketReport, error) {
	v, err := openBucketView(ctx, opts)
	if err != nil {
		return BucketReport{}, err
	}
	if err = v.indexByObject(ctx); err == nil {
		err = v.readObjects(ctx)
	}
	if err == nil {
		err = v.confirmProblems(ctx)
	}
	if err == nil {
		err = v.findGarbage(ctx)
	}
	return v.report, errors.Join(err, v.close())
}

// CollectGarbage finds the objects that nothing names and nothing can name any more,
// because the writer that made them has been fenced or has gone on without them, and
// that are older than minAge; with remove it deletes them. These are segments, parts of
// checkpoints, checkpoints themselves, and log objects that checkpoints cover. Others that
// nothing names are reported with the reason why they stay.
func CollectGarbage(ctx context.Context, opts BucketOptions, minAge time.Duration, remove bool) (BucketReport, error) {
	v, err := openBucketView(ctx, opts)
	if err != nil {
		return BucketReport{}, err
	}
	if err = v.findGarbage(ctx); err == nil {
		err = v.collect(ctx, minAge, remove)
	}
	return v.report, errors.Join(err, v.close())
}

// openBucketView lists what there is, then builds the index: what is listed and not in
// the index was not yet in it, or is no longer, when the listing began.
func openBucketView(ctx context.Context, opts BucketOptions) (*bucketView, error) {
	o := Options{
		Dir: opts.Dir, FS: opts.FS, Bucket: opts.Bucket, Shard: opts.Shard, Now: opts.Now, Logger: opts.Logger,
		MinFreeBytes: -1, // no ballast
	}
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("bucket options: %w", err)
	}
	s := &Store{opts: o, log: o.Logger, metrics: newMetrics(nil), codec: newStateCodec(), failed: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(ctx)
	s.checkpoints = newCheckpointer(s)
	v := &bucketView{store: s}
	err := v.list(ctx)
	if err == nil {
		err = s.openDatabase()
	}
	if err == nil {
		v.follower, err = s.catchUp(ctx)
		for errors.Is(err, errClaimLost) {
			v.follower, err = s.catchUp(ctx)
		}
	}
	if err == nil && v.follower.position.number == 0 {
		err = fmt.Errorf("there is no commit log in %s/%s", o.Bucket.Location(), logDir(o.Shard))
	}
	if err != nil {
		return nil, errors.Join(err, v.close())
	}
	v.report.Commit, v.report.Epoch = v.follower.position.number, v.follower.highest
	if err := v.checkCheckpoints(ctx); err != nil {
		return nil, errors.Join(err, v.close())
	}
	return v, nil
}

func (v *bucketView) close() error {
	v.store.cancel()
	if v.store.db == nil {
		return nil
	}
	return v.store.db.Close()
}

func (v *bucketView) list(ctx context.Context) error {
	s := v.store
	each := func(dir string, fn func(objstore.ObjectInfo)) error {
		return s.opts.Bucket.List(ctx, dir, "", func(info objstore.ObjectInfo) error {
			v.report.BucketBytes += info.Size
			fn(info)
			return nil
		})
	}
	return errors.Join(
		each(segmentDir(s.opts.Shard), func(info objstore.ObjectInfo) {
			v.report.Segments++
			v.listed = append(v.listed, info)
		}),
		each(stateDir(s.opts.Shard), func(info objstore.ObjectInfo) {
			v.report.CheckpointParts++
			v.parts = append(v.parts, info)
		}),
		each(checkpointDir(s.opts.Shard), func(info objstore.ObjectInfo) {
			v.report.Checkpoints++
			if number, ok := parseCheckpointName(s.opts.Shard, info.Name); ok {
				v.numbers = append(v.numbers, number)
			}
		}),
		each(logDir(s.opts.Shard), func(info objstore.ObjectInfo) {
			v.report.LogObjects++
			v.log = append(v.log, info)
		}))
}

// prefixByObject is the prefix of rows that exist in the database of a view only: the
// extents by object.
//
//	x <kind> <number> <position> -> key and value of the extent's row
const prefixByObject = 'x'

// indexByObject writes the extents down by object and position, so that each object is
// read once, and checks that each stream's have no gaps.
func (v *bucketView) indexByObject(ctx context.Context) error {
	s := v.store
	batch := s.db.NewBatch()
	defer func() { _ = batch.Close() }()
	var gaps gapCheck
	err := eachRow(ctx, s.db, prefixExtent, func(key, value []byte) error {
		x, err := decodeExtent(key, value)
		if err != nil {
			return err
		}
		v.report.Extents++
		v.report.LiveBytes += x.length
		if err := v.checkGap(&gaps, streamExtent{StreamID(keyNumber(key, 0)), x}); err != nil {
			return err
		}
		byObject := append([]byte{prefixByObject}, objectKey(x.object)[1:]...)
		byObject = binary.BigEndian.AppendUint64(byObject, uint64(x.position))
		if err := batch.Set(byObject, slices.Concat(key, value), nil); err != nil {
			return err
		}
		if batch.Len() < maxGroupBytes {
			return nil
		}
		if err := s.db.Apply(batch, pebble.NoSync); err != nil {
			return err
		}
		batch.Reset()
		return nil
	})
	if err != nil {
		return err
	}
	if err := s.db.Apply(batch, pebble.NoSync); err != nil {
		return err
	}
	return eachRow(ctx, s.db, prefixStream, func(_, _ []byte) error {
		v.report.Streams++
		return nil
	})
}

// gapCheck follows the extents of one stream after the other.
type gapCheck struct {
	id   StreamID
	next int64
}

func (v *bucketView) checkGap(g *gapCheck, x streamExtent) error {
	if g.id == x.id {
		if x.base != g.next {
			v.add(x, &CorruptError{Where: "index", What: "base offset", Found: x.base, Expected: g.next})
		}
		g.next = x.last + 1
		return nil
	}
	g.id, g.next = x.id, x.last+1
	value, ok, err := v.store.getRow(streamKey(x.id))
	if err != nil {
		return err
	}
	if !ok {
		v.add(x, &CorruptError{Where: "index", What: fmt.Sprintf("stream id %d", x.id), Found: "extents", Expected: "none, because there is no such stream"})
		return nil
	}
	row, err := decodeStreamRow(value)
	if err != nil {
		return err
	}
	if x.base > row.start {
		v.add(x, &CorruptError{Where: "index", What: "first offset", Found: x.base, Expected: row.start})
	}
	return nil
}

func (v *bucketView) add(x streamExtent, err error) {
	v.problems.Lock()
	defer v.problems.Unlock()
	v.problems.list = append(v.problems.list, extentProblem{x, err})
}

// checkedAtOnce is how many objects are read at a time, each of them whole.
const checkedAtOnce = 2

// readObjects reads every object that holds live batches and checks these.
func (v *bucketView) readObjects(ctx context.Context) error {
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(checkedAtOnce)
	var list []streamExtent
	flush := func() {
		if extents := list; len(extents) > 0 {
			list = nil
			v.report.CheckedObjects++
			group.Go(func() error { return v.checkObject(groupCtx, extents) })
		}
	}
	err := eachRow(ctx, v.store.db, prefixByObject, func(_, row []byte) error {
		key, value := row[:extentKeySize], row[extentKeySize:]
		x, err := decodeExtent(key, value)
		if err != nil {
			return err
		}
		if len(list) > 0 && list[0].object != x.object {
			flush()
		}
		list = append(list, streamExtent{StreamID(keyNumber(key, 0)), x})
		return groupCtx.Err()
	})
	if err == nil {
		flush()
	}
	return cmp.Or(group.Wait(), err)
}

// checkObject checks the extents of one object. An error means that the bucket could not
// be asked; what is wrong with the object is noted.
func (v *bucketView) checkObject(ctx context.Context, extents []streamExtent) error {
	s, object := v.store, extents[0].object
	name := object.name(s.opts.Shard)
	var data []byte
	err := retry(ctx, s.log, "reading an object", func() (err error) {
		data, err = s.opts.Bucket.Get(ctx, name)
		if errors.Is(err, objstore.ErrNotFound) {
			err = &CorruptError{Where: name, What: "object", Found: "missing", Expected: "present"}
		}
		return err
	})
	if err == nil {
		err = s.checkWhole(object, name, data)
	}
	if err != nil && !errors.Is(err, ErrCorrupt) {
		return err
	}
	for _, x := range extents {
		failed := err
		if failed == nil && x.position+x.length > int64(len(data)) {
			failed = &CorruptError{Where: name, Position: x.position, What: "length of the object", Found: len(data), Expected: x.position + x.length}
		}
		if failed == nil {
			failed = checkExtent(name, x.extent, data[x.position:x.position+x.length])
		}
		if failed != nil {
			v.add(x, failed)
		}
	}
	return nil
}

// checkWhole checks what frames the data section of an object.
func (s *Store) checkWhole(object objectID, name string, data []byte) error {
	if object.kind == objectSegment {
		h, err := decodeSegmentHeader(name, data)
		if err != nil {
			return err
		}
		if h.size() != int64(len(data)) || h.number != object.number || h.shard != s.opts.Shard {
			return &CorruptError{Where: name, What: "size, number and shard", Found: fmt.Sprint(len(data), object.number, s.opts.Shard), Expected: fmt.Sprint(h.size(), h.number, h.shard)}
		}
		d, err := s.codec.openDirectory(name, &h, data[segmentHeaderSize+h.dataLength:])
		for ok := true; err == nil && ok; {
			_, ok, err = d.next()
		}
		return err
	}
	h, err := s.decodeOwnHeader(name, data)
	if err != nil {
		return err
	}
	if h.size() != int64(len(data)) {
		return &CorruptError{Where: name, What: "object size", Found: len(data), Expected: h.size()}
	}
	_, err = s.codec.open(name, &h, data[commitHeaderSize+h.dataLength:])
	return err
}

// confirmProblems follows the log once more and drops the problems of extents that are
// no longer in the index: a live writer has trimmed or moved them, and deleted the
// object, while this one was reading.
func (v *bucketView) confirmProblems(ctx context.Context) error {
	if len(v.problems.list) == 0 {
		return nil
	}
	s := v.store
	if err := v.follower.follow(ctx); err != nil {
		return err
	}
	for _, p := range v.problems.list {
		value, ok, err := s.getRow(extentKey(p.extent.id, p.extent.last))
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		if x, err := decodeExtent(extentKey(p.extent.id, p.extent.last), value); err == nil && x != p.extent.extent {
			continue
		}
		problem := BucketProblem{Object: p.extent.object.name(s.opts.Shard), Base: p.extent.base, Last: p.extent.last, Err: p.err}
		if row, ok, err := s.getRow(streamKey(p.extent.id)); err == nil && ok {
			if row, err := decodeStreamRow(row); err == nil {
				problem.Stream = row.name
			}
		}
		v.report.Problems = append(v.report.Problems, problem)
	}
	slices.SortFunc(v.report.Problems, func(a, b BucketProblem) int {
		return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.Stream, b.Stream), cmp.Compare(a.Base, b.Base))
	})
	return nil
}

// findGarbage reports what nothing names.
func (v *bucketView) findGarbage(ctx context.Context) error {
	err := v.findSegments(ctx)
	if err == nil {
		err = v.findCheckpoints(ctx)
	}
	if err == nil {
		err = v.findLogObjects(ctx)
	}
	return err
}

// findSegments reports the segments that were listed and that the index does not know.
func (v *bucketView) findSegments(ctx context.Context) error {
	s := v.store
	known := make(map[objectID]bool)
	newest := uint64(0) // count of the newest segment of this epoch in the index
	err := eachRow(ctx, s.db, prefixObject, func(key, _ []byte) error {
		o, err := decodeObjectKey(key)
		known[o] = true
		if o.kind == objectSegment && segmentEpoch(o.number) == v.follower.position.epoch {
			newest = max(newest, segmentCount(o.number))
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("object rows: %w", err)
	}
	for _, info := range v.listed {
		number, ok := parseSegmentName(s.opts.Shard, info.Name)
		if ok && known[objectID{objectSegment, number}] {
			continue
		}
		g := GarbageObject{Name: info.Name, Bytes: info.Size, InUse: "it is none of Brooklet's names"}
		if ok {
			g.InUse = v.mayBeCommitted(number, newest)
			if there, err := v.describe(ctx, &g); err != nil || !there {
				if err != nil {
					return err
				}
				continue // deleted since it was listed
			}
		}
		v.report.Garbage = append(v.report.Garbage, g)
	}
	return nil
}

// mayBeCommitted tells why a segment that is not in the index may still come into it.
//
// A writer brings its segments into the index in the order of their numbers, each before
// it makes the next. And the log tells which writer has been fenced: no commit of an
// epoch below the newest live one can become live any more, because the segment was
// listed before the log was followed to its end.
func (v *bucketView) mayBeCommitted(number, newest uint64) string {
	switch epoch := segmentEpoch(number); {
	case epoch < v.follower.position.epoch:
		return ""
	case epoch == v.follower.position.epoch && segmentCount(number) < newest:
		return ""
	case epoch == v.follower.position.epoch:
		return "the present writer may be about to commit it"
	}
	return "a writer that is newer than the end of the log has made it"
}

// describe reads when the object was made.
func (v *bucketView) describe(ctx context.Context, g *GarbageObject) (there bool, err error) {
	s := v.store
	var b []byte
	err = retry(ctx, s.log, "reading a segment", func() (err error) {
		b, err = s.opts.Bucket.GetRange(ctx, g.Name, 0, segmentHeaderSize)
		if errors.Is(err, objstore.ErrNotFound) || errors.Is(err, objstore.ErrTruncated) {
			there = errors.Is(err, objstore.ErrTruncated)
			b, err = nil, nil
			return err
		}
		there = err == nil
		return err
	})
	if h, corrupt := decodeSegmentHeader(g.Name, b); err == nil && corrupt == nil {
		g.Created = time.UnixMilli(h.created)
	}
	return there, err
}

// collect deletes the garbage that is old enough.
func (v *bucketView) collect(ctx context.Context, minAge time.Duration, remove bool) error {
	s := v.store
	for i := range v.report.Garbage {
		g := &v.report.Garbage[i]
		since := g.Created
		if !g.since.IsZero() {
			since = g.since
		}
		if age := s.opts.Now().Sub(since); g.InUse == "" && !since.IsZero() && age < minAge {
			g.InUse = fmt.Sprintf("it is younger than %v", minAge)
		}
		if g.InUse != "" || !remove {
			continue
		}
		if err := s.opts.Bucket.Delete(ctx, g.Name); err != nil {
			return fmt.Errorf("deleting %s: %w", g.Name, err)
		}
		g.Deleted = true
	}
	return nil
}
