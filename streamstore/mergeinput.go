package streamstore

import (
	"context"
	"errors"
	"fmt"
	"path"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/batchrepr"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/brookletmq/brooklet/objstore"
)

// mergeInput is an object that is being merged. Of a folder of this machine ranges are
// read as they come; an object of a remote bucket is fetched whole with one request, to
// memory if it is small, else to a scratch file. Reads go forward, so a window ahead of
// them makes small extents cost no request each.
type mergeInput struct {
	store     *Store
	object    objectID
	name      string
	end       int64 // of the data section
	directory extentIterator
	window    int64

	at    int64 // position of ahead in the object
	ahead []byte

	file vfs.File // scratch file; nil: none
	path string
}

// extentIterator goes through the extents that an object was made with, in stream and
// offset order. *CorruptError: it is damaged.
type extentIterator interface {
	next() (x streamExtent, ok bool, err error)
}

const (
	mergeWindowMin = 16 << 10
	mergeWindowMax = 1 << 20
)

// window is the size of each window when n objects are open, all of which may take
// memory bytes.
func window(memory int64, n int) int64 {
	return min(max(memory/int64(max(n, 1)), mergeWindowMin), mergeWindowMax)
}

// open opens an object of the plan.
func (m *merge) open(o candidateObject) (*mergeInput, error) {
	in := &mergeInput{store: m.store, object: o.id, name: o.id.name(m.store.opts.Shard), window: m.window}
	if !m.store.opts.Bucket.Local() {
		if err := in.fetch(m.ctx); err != nil {
			return nil, errors.Join(err, in.close())
		}
	}
	if err := in.readDirectory(m.ctx); err != nil {
		return nil, errors.Join(err, in.close())
	}
	return in, nil
}

// request makes a request to the bucket, again and again; a missing object counts as
// damaged.
func (in *mergeInput) request(ctx context.Context, do func() error) error {
	return retry(ctx, in.store.log, "reading an object to compact it", func() error {
		err := do()
		if errors.Is(err, objstore.ErrNotFound) || errors.Is(err, objstore.ErrTruncated) {
			err = &CorruptError{Where: in.store.opts.Bucket.Location() + "/" + in.name, What: "object", Found: err, Expected: "present and whole"}
		}
		return err
	})
}

// fetch brings the whole object here.
func (in *mergeInput) fetch(ctx context.Context) error {
	var data []byte
	err := in.request(ctx, func() (err error) {
		data, err = in.store.opts.Bucket.Get(ctx, in.name)
		return err
	})
	if err != nil {
		return err
	}
	in.store.metrics.compactionRead.Add(float64(len(data)))
	in.ahead = data
	if int64(len(data)) <= in.window {
		return nil
	}
	return in.spill(data)
}

// spill puts the object into a scratch file.
func (in *mergeInput) spill(data []byte) (err error) {
	fs, dir := in.store.opts.FS, in.store.opts.scratchDir()
	if err := fs.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	in.path = path.Join(dir, fmt.Sprintf("%d-%020d", in.object.kind, in.object.number))
	if in.file, err = fs.Create(in.path, vfs.WriteCategoryUnspecified); err != nil {
		return err
	}
	_, err = in.file.Write(data)
	// What was made with Create need not be readable.
	if err = errors.Join(err, in.file.Close()); err == nil {
		in.file, err = fs.Open(in.path)
	}
	if err != nil {
		in.file = nil
	}
	in.ahead = nil
	return err
}

// readRange returns n bytes at a position, from where the object is.
func (in *mergeInput) readRange(ctx context.Context, at, n int64) (data []byte, err error) {
	switch {
	case in.file != nil:
		data = make([]byte, n)
		if _, err = in.file.ReadAt(data, at); err != nil {
			err = fmt.Errorf("scratch file %s: %w", in.path, err)
		}
	case in.at == 0 && int64(len(in.ahead)) >= at+n:
		data = in.ahead[at : at+n]
	case !in.store.opts.Bucket.Local():
		err = &CorruptError{Where: in.name, What: "length", Found: len(in.ahead), Expected: at + n}
	default:
		err = in.request(ctx, func() (err error) {
			data, err = in.store.opts.Bucket.GetRange(ctx, in.name, at, n)
			return err
		})
		in.store.metrics.compactionRead.Add(float64(len(data)))
	}
	return data, err
}

// read returns n bytes of the data section. They are valid until the next read.
func (in *mergeInput) read(ctx context.Context, at, n int64) (data []byte, err error) {
	if at < 0 || n < 0 || at > in.end-n {
		return nil, &CorruptError{Where: in.name, Position: at, What: "extent", Found: fmt.Sprintf("%d bytes", n), Expected: fmt.Sprintf("at most %d", in.end-at)}
	}
	if at < in.at || at+n > in.at+int64(len(in.ahead)) {
		length := min(max(n, in.window), in.end-at)
		ahead, err := in.readRange(ctx, at, length)
		if err != nil {
			return nil, err
		}
		in.at, in.ahead = at, ahead
	}
	return in.ahead[at-in.at : at-in.at+n], nil
}

// refresh forgets what was read, so that the next read asks the bucket again.
func (in *mergeInput) refresh(ctx context.Context) error {
	in.at, in.ahead = 0, nil
	if in.store.opts.Bucket.Local() {
		return nil
	}
	if err := in.close(); err != nil {
		return err
	}
	return in.fetch(ctx)
}

func (in *mergeInput) close() (err error) {
	if in.file != nil {
		err = in.file.Close()
		in.file = nil
	}
	if in.path != "" {
		err = errors.Join(err, in.store.opts.FS.Remove(in.path))
		in.path = ""
	}
	return err
}

// readDirectory reads what the object was made with.
func (in *mergeInput) readDirectory(ctx context.Context) error {
	corrupt := 0
	for {
		err := in.tryDirectory(ctx)
		if errors.Is(err, ErrCorrupt) {
			if corrupt++; corrupt < maxCorruptReads {
				if err := in.refresh(ctx); err != nil {
					return err
				}
				continue
			}
		}
		return err
	}
}

func (in *mergeInput) tryDirectory(ctx context.Context) error {
	if in.object.kind == objectSegment {
		return in.readSegmentDirectory(ctx)
	}
	return in.readLogDirectory(ctx)
}

func (in *mergeInput) readSegmentDirectory(ctx context.Context) error {
	b, err := in.readRange(ctx, 0, segmentHeaderSize)
	if err != nil {
		return err
	}
	h, err := decodeSegmentHeader(in.name, b)
	if err != nil {
		return err
	}
	if h.number != in.object.number || h.shard != in.store.opts.Shard {
		return &CorruptError{Where: in.name, Position: 12, What: "shard and number", Found: fmt.Sprintf("%d %d", h.shard, h.number), Expected: fmt.Sprintf("%d %d", in.store.opts.Shard, in.object.number)}
	}
	in.end = segmentHeaderSize + h.dataLength
	if b, err = in.readRange(ctx, in.end, h.directoryLen+commitFooterSize); err != nil {
		return err
	}
	in.directory, err = in.store.codec.openDirectory(in.name, &h, b)
	return err
}

func (in *mergeInput) readLogDirectory(ctx context.Context) error {
	b, err := in.readRange(ctx, 0, commitHeaderSize)
	if err != nil {
		return err
	}
	h, err := in.store.decodeOwnHeader(in.name, b)
	if err != nil {
		return err
	}
	in.end = commitHeaderSize + h.dataLength
	if b, err = in.readRange(ctx, in.end, h.stateLen+commitFooterSize); err != nil {
		return err
	}
	state, err := in.store.codec.open(in.name, &h, b)
	if err != nil {
		return err
	}
	in.directory, err = newStateDirectory(in.name, in.object, state)
	return err
}

// stateDirectory finds the extents of a log object's own data among the changes of its
// state section.
type stateDirectory struct {
	name     string
	object   objectID
	reader   batchrepr.Reader
	previous streamExtent
}

func newStateDirectory(name string, object objectID, state []byte) (*stateDirectory, error) {
	d := &stateDirectory{name: name, object: object, previous: streamExtent{extent: extent{last: -1}}}
	if len(state) == 0 {
		return d, nil
	}
	if _, ok := batchrepr.ReadHeader(state); !ok {
		return nil, d.corrupt("shorter than a batch")
	}
	d.reader = batchrepr.Read(state)
	return d, nil
}

func (d *stateDirectory) corrupt(found any) error {
	return &CorruptError{Where: d.name, What: "state section", Found: found, Expected: "extents in stream and offset order"}
}

func (d *stateDirectory) next() (x streamExtent, ok bool, err error) {
	for {
		kind, key, value, ok, err := d.reader.Next()
		if err != nil {
			return x, false, d.corrupt(err)
		}
		if !ok {
			return x, false, nil
		}
		if kind != pebble.InternalKeyKindSet || len(key) != extentKeySize || key[0] != prefixExtent {
			continue
		}
		if x.extent, err = decodeExtent(key, value); err != nil {
			return x, false, d.corrupt(err)
		}
		if x.object != d.object {
			continue
		}
		x.id = StreamID(keyNumber(key, 0))
		if x.compare(d.previous) <= 0 {
			return x, false, d.corrupt(fmt.Sprintf("stream %d after %d", x.id, d.previous.id))
		}
		d.previous = x
		return x, true, nil
	}
}
