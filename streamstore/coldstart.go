package streamstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"path"
	"slices"
	"strconv"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/brookletmq/brooklet/objstore"
)

// errClaimLost: another writer has taken the log further than this one knew.
var errClaimLost = errors.New("another writer claimed the shard meanwhile")

// maxPartFetches bounds the parts of a checkpoint fetched at a time, and with that the
// memory for them and the load on a bucket that may be in trouble.
const maxPartFetches = 4

// listCheckpoints returns the commit numbers of the shard's checkpoints, ascending.
func (s *Store) listCheckpoints(ctx context.Context) (numbers []uint64, err error) {
	err = retry(ctx, s.log, "listing the checkpoints", func() error {
		numbers = numbers[:0]
		return s.opts.Bucket.List(ctx, checkpointDir(s.opts.Shard), "", func(info objstore.ObjectInfo) error {
			if number, ok := parseCheckpointName(s.opts.Shard, info.Name); ok {
				numbers = append(numbers, number)
			}
			return nil
		})
	})
	return numbers, err
}

// readManifest reads the manifest of the checkpoint of a commit. A *CorruptError means
// that it is damaged or gone.
func (s *Store) readManifest(ctx context.Context, number uint64) (m *manifest, err error) {
	name := checkpointName(s.opts.Shard, number)
	err = retry(ctx, s.log, "reading a checkpoint", func() error {
		b, err := s.getPresent(ctx, name)
		if err == nil {
			m, err = decodeManifest(s.opts.Bucket.Location()+"/"+name, s.opts.Shard, number, b)
		}
		return err
	})
	return m, err
}

// readPart reads a part of a checkpoint and proves that it is the one that the manifest
// means. A *CorruptError means that it is not, or is gone.
func (s *Store) readPart(ctx context.Context, p *part) (b []byte, err error) {
	name := p.name.object(s.opts.Shard)
	err = retry(ctx, s.log, "reading a part of a checkpoint", func() error {
		if b, err = s.getPresent(ctx, name); err != nil {
			return err
		}
		where := s.opts.Bucket.Location() + "/" + name
		if int64(len(b)) != p.size {
			return &CorruptError{Where: where, What: "length", Found: len(b), Expected: p.size}
		}
		if crc := crc32.Checksum(b, castagnoli); crc != p.crc {
			return &CorruptError{Where: where, What: "checksum", Found: crc, Expected: p.crc}
		}
		return nil
	})
	return b, err
}

// getPresent reads an object; that there is none is a *CorruptError.
func (s *Store) getPresent(ctx context.Context, name string) ([]byte, error) {
	b, err := s.opts.Bucket.Get(ctx, name)
	if errors.Is(err, objstore.ErrNotFound) {
		err = &CorruptError{Where: s.opts.Bucket.Location() + "/" + name, What: "object", Found: "missing", Expected: "present, because a checkpoint needs it"}
	}
	s.fetchedBytes.Add(int64(len(b)))
	return b, err
}

// prepareDisk makes sure that the log can be followed from where the local database
// is: one that is new or outdated is rebuilt from the newest checkpoint that can be
// read. It returns the commit numbers of the checkpoints that it saw.
func (s *Store) prepareDisk(ctx context.Context) (checkpoints []uint64, err error) {
	if checkpoints, err = s.listCheckpoints(ctx); err != nil {
		return nil, err
	}
	f, err := s.newFollower()
	if err != nil {
		return checkpoints, err
	}
	if f.current(checkpoints) {
		return checkpoints, nil
	}
	if f.hasTail() {
		inLog, err := s.tailInLog(ctx, f, checkpoints)
		if err != nil {
			return checkpoints, err
		}
		if !inLog {
			return checkpoints, errForeignClaim
		}
	}
	var damaged []uint64
	for _, number := range slices.Backward(checkpoints) {
		err := s.rebuildFrom(ctx, number, damaged)
		if err == nil {
			return checkpoints, nil
		}
		if !errors.Is(err, ErrCorrupt) {
			return checkpoints, err
		}
		s.log.Warn("a checkpoint is damaged, trying an older one", zap.Uint64("commit", number), zap.Error(err))
		s.checkpoints.distrust(number)
		damaged = append(damaged, number)
	}
	if f.position.number > 0 {
		return checkpoints, nil // the log may still be whole; checkReached tells
	}
	return checkpoints, s.checkLogWhole(ctx, checkpoints)
}

// current reports whether the log can be followed from the database's position. Log
// objects are deleted only below the older of the two checkpoints that the owner keeps
// (see keep), and these or newer ones are in the bucket. So everything after a position
// that is not below the second newest one there, damaged or not, is in the log. (It may
// be from a lower position, but which two the owner keeps cannot be told for sure: it may
// know of damage that is not seen from here, and the reverse.)
//
// An older position must not be trusted even if the next number exists: in the hole
// where objects were cleaned up, an opener that was paused for long may have put a claim
// before it noticed. For the same reason a number where this writer lost its claim to a
// checkpoint is not followed again.
func (f *follower) current(checkpoints []uint64) bool {
	n := len(checkpoints)
	if n == 0 {
		return true
	}
	if f.position.number == 0 || n > 1 && f.position.number < checkpoints[n-2] {
		return false
	}
	lost := f.store.lostClaim
	return f.position.number >= lost || checkpoints[n-1] < lost
}

// tailInLog reports whether an outdated disk's whole tail is known to be in the log: a
// checkpoint of the writer that this disk belonged to was complete with all of it. That
// is so after a power failure that took the position's last moves, but no appends that
// mattered: what the disk holds of the tail was written before them.
func (s *Store) tailInLog(ctx context.Context, f *follower, checkpoints []uint64) (bool, error) {
	for _, number := range checkpoints {
		m, err := s.readManifest(ctx, number)
		if errors.Is(err, ErrCorrupt) {
			continue
		}
		if err != nil {
			return false, err
		}
		if slices.Contains(f.claims, m.position.nonce) && max(m.ahead, m.position.appendTo) >= f.tailEnd {
			return true, nil
		}
	}
	return false, nil
}

// checkLogWhole allows a start without any checkpoint, from log object 1 on, if that is
// still there.
func (s *Store) checkLogWhole(ctx context.Context, checkpoints []uint64) error {
	infos, err := (&follower{store: s}).list(ctx)
	if err != nil {
		return err
	}
	if len(infos) > 0 && infos[0].Name == logName(s.opts.Shard, 1) {
		s.log.Warn("no checkpoint can be read, replaying the whole commit log", zap.Int("checkpoints", len(checkpoints)))
		return s.replaceDatabase() // a rebuild may have been cut off
	}
	first := "nothing"
	if len(infos) > 0 {
		first = infos[0].Name
	}
	return fmt.Errorf("the shard cannot be rebuilt: %w; restore a checkpoint's objects in the bucket from a copy, or start with the data directory that was used last",
		&CorruptError{Where: s.opts.Bucket.Location() + "/" + checkpointDir(s.opts.Shard), What: "checkpoints", Found: fmt.Sprintf("%d, all damaged, and the commit log begins with %s", len(checkpoints), first), Expected: "one that can be read"})
}

// checkReached proves that the log did not end early: it goes at least to the newest
// checkpoint, and to where the rows of the one that was restored agree.
func (f *follower) checkReached(checkpoints []uint64) error {
	dir := f.store.opts.Bucket.Location() + "/" + logDir(f.store.opts.Shard)
	if n := len(checkpoints); n > 0 && f.position.number < checkpoints[n-1] {
		return &CorruptError{Where: dir, What: "last commit of the log", Found: f.position.number, Expected: fmt.Sprintf("at least %d, for which there is a checkpoint: restore the missing objects", checkpoints[n-1])}
	}
	if f.position.appendTo < f.ahead {
		return &CorruptError{Where: dir, What: "last append in the log", Found: f.position.appendTo, Expected: fmt.Sprintf("at least %d, which the checkpoint holds a part of: restore the missing objects", f.ahead)}
	}
	return nil
}

// cleanedMeanwhile decides about damage found in checkpoints or log: errClaimLost
// if the owner of the shard has made checkpoints since and deleted what they cover, so
// that the log can be followed from them, else damage.
func (s *Store) cleanedMeanwhile(ctx context.Context, before []uint64, damage error) error {
	now, err := s.listCheckpoints(ctx)
	if err != nil {
		return err
	}
	f, err := s.newFollower()
	if err != nil {
		return err
	}
	if slices.Equal(before, now) || f.current(now) {
		return damage
	}
	s.log.Info("the commit log was cleaned up while it was read, starting over", zap.NamedError("found", damage))
	return errClaimLost
}

// restoreDir is where the parts of a checkpoint are put before they go into the
// database.
func (o *Options) restoreDir() string { return path.Join(o.Dir, "restore") }

// rebuildFrom replaces the local database by a checkpoint. All parts are fetched and
// checked first. A crash leaves a database without a position, which prepareDisk
// rebuilds again, or one at a position from which the log, or again a checkpoint, leads
// on. A *CorruptError means that the checkpoint cannot be used.
//
// damaged are the newer ones that could not be used. The database remembers them: when it
// is opened in place their parts are not read again.
func (s *Store) rebuildFrom(ctx context.Context, number uint64, damaged []uint64) (err error) {
	m, err := s.readManifest(ctx, number)
	if err != nil {
		return err
	}
	fs, dir := s.opts.FS, s.opts.restoreDir()
	if err := fs.RemoveAll(dir); err != nil {
		return err
	}
	if err := makeDir(fs, dir); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, fs.RemoveAll(dir)) }()
	if err := s.fetchParts(ctx, m); err != nil {
		return err
	}
	if err := s.replaceDatabase(); err != nil {
		return err
	}
	if err := s.restore(ctx, m, damaged); err != nil {
		if err := s.replaceDatabase(); err != nil {
			return err
		}
		return err
	}
	s.recovery.Checkpoint = m.position.number
	s.log.Info("rebuilt the local database from a checkpoint", zap.Uint64("commit", m.position.number), zap.Int("parts", len(m.parts)))
	return nil
}

func (s *Store) restoreFile(i int) string { return path.Join(s.opts.restoreDir(), strconv.Itoa(i)) }

// fetchParts puts the parts of a checkpoint into the restore folder.
func (s *Store) fetchParts(ctx context.Context, m *manifest) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxPartFetches)
	for i := range m.parts {
		group.Go(func() error {
			b, err := s.readPart(ctx, &m.parts[i])
			if err != nil {
				return err
			}
			return writeSynced(s.opts.FS, s.restoreFile(i), b)
		})
	}
	return group.Wait()
}

func writeSynced(fs vfs.FS, name string, b []byte) error {
	file, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	if _, err := file.Write(b); err != nil {
		return errors.Join(err, file.Close())
	}
	return errors.Join(file.Sync(), file.Close())
}

// restore fills the empty database from the fetched parts.
func (s *Store) restore(ctx context.Context, m *manifest, damaged []uint64) error {
	corrupt := func(what string, found, expected any) error {
		return &CorruptError{Where: s.opts.Bucket.Location() + "/" + checkpointName(s.opts.Shard, m.position.number), What: what, Found: found, Expected: expected}
	}
	var tables []string
	for i := range m.parts {
		if m.parts[i].kind == partTable {
			tables = append(tables, s.restoreFile(i))
		}
	}
	if len(tables) > 0 {
		if err := s.db.Ingest(ctx, tables); err != nil {
			if errors.Is(err, pebble.ErrCorruption) {
				err = corrupt("tables", err, "tables that can be ingested")
			}
			return err
		}
	}
	batch := s.db.NewBatch()
	defer batch.Close()
	if err := batch.Set(keyPosition, m.base.encode(), nil); err != nil {
		return err
	}
	if err := batch.Set(keyAhead, encodeAhead(m.ahead), nil); err != nil {
		return err
	}
	if err := batch.Set(keyDamaged, encodeDamaged(damaged), nil); err != nil {
		return err
	}
	if err := s.db.Apply(batch, pebble.Sync); err != nil {
		return err
	}
	f, err := s.newFollower()
	if err != nil {
		return err
	}
	for i := range m.parts {
		if m.parts[i].kind == partBundle {
			if err := f.applyBundle(&m.parts[i], s.restoreFile(i)); err != nil {
				return err
			}
		}
	}
	if f.position != m.position {
		return corrupt("position after the last bundle", fmt.Sprint(f.position), fmt.Sprint(m.position))
	}
	s.recovery.ReplayedCommits = 0 // counts log objects
	return nil
}

// applyBundle applies the state sections of a bundle to the database.
func (f *follower) applyBundle(p *part, file string) error {
	s, where := f.store, p.name.object(f.store.opts.Shard)
	b, err := readWhole(s.opts.FS, file)
	if err != nil {
		return err
	}
	body, err := bundleBody(where, s.opts.Shard, p.after, p.last, b)
	if err != nil {
		return err
	}
	return eachSection(where, p.after, body, func(c section) error {
		if !f.live(&c.header) {
			return &CorruptError{Where: where, What: "commit", Found: fmt.Sprintf("%d of epoch %d", c.header.number, c.header.epoch), Expected: fmt.Sprintf("one that goes on from %d of epoch %d", f.position.number, f.position.epoch)}
		}
		state, err := s.codec.decompress(where, &c.header, c.compressed)
		return f.apply(fetched{name: where, header: c.header, state: state, err: err})
	})
}

// The row "l ahead" is there while a rebuilt database's rows n, s and k may be ahead of
// its position: version, append number u that replay must reach.
func encodeAhead(ahead uint64) []byte {
	return binary.AppendUvarint([]byte{rowVersion}, ahead)
}

func decodeAhead(b []byte) (uint64, error) {
	r := newRowReader(b, rowVersion)
	ahead := r.uvarint()
	if r.err != nil {
		return 0, fmt.Errorf("row %q: %w", keyAhead, r.err)
	}
	return ahead, nil
}
