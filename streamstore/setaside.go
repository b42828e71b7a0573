package streamstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"path"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"
)

// A set-aside file keeps the unflushed appends of a disk whose shard was claimed
// by another writer meanwhile: they can no longer be part of the log, and only a
// person can decide what to do with them. Its name is
// set-aside-<epoch>-<ms since 1970>.tail; integers are big-endian:
//
//	magic "BRKLTAIL" (8)
//	then for each append and transaction, in order:
//	  length of what follows the checksum (4), CRC-32C of that (4)
//	  length of the stream name (2), stream name; 0 for a transaction
//	  the record batch, with the offsets it had been given, and what was done in one
//	  step with it; of a transaction the tail entry (see mutation.encode)
const setAsideMagic = "BRKLTAIL"

// setTailAside writes the local tail to a set-aside file and begins again with an
// empty database, to be filled from the bucket.
func (s *Store) setTailAside() error {
	name := path.Join(s.opts.Dir, fmt.Sprintf("set-aside-%d-%d.tail", s.positionEpoch(), s.opts.Now().UnixMilli()))
	n, err := s.writeSetAside(name)
	if err != nil {
		return fmt.Errorf("setting unflushed records aside: %w", err)
	}
	if err := s.replaceDatabase(); err != nil {
		return err
	}
	s.recovery = Recovery{SetAside: name, SetAsideAppends: n}
	s.log.Error("another writer has claimed this shard since this disk was used; its unflushed records are not part of the log any more and were set aside",
		zap.String("file", name), zap.Int("appends", n))
	return nil
}

// replaceDatabase begins again with an empty database.
func (s *Store) replaceDatabase() error {
	db := s.db
	s.db = nil // closed once, whatever comes of it
	s.guard.active.Store(false)
	if err := errors.Join(s.witness.close(), db.Close()); err != nil {
		return err
	}
	if err := s.discardDatabase(); err != nil {
		return fmt.Errorf("removing the outdated database: %w", err)
	}
	return s.openDatabase()
}

// discardDatabase removes the database in a way that a crash cannot leave half of it
// behind: the folder is renamed first, and openDatabase removes what is left of it.
func (s *Store) discardDatabase() error {
	if err := s.opts.FS.RemoveAll(s.opts.outdatedDir()); err != nil {
		return err
	}
	if err := s.opts.FS.Rename(s.opts.dbDir(), s.opts.outdatedDir()); err != nil {
		return err
	}
	if err := syncDir(s.opts.FS, s.opts.Dir); err != nil {
		return err
	}
	return s.opts.FS.RemoveAll(s.opts.outdatedDir())
}

func (s *Store) positionEpoch() uint64 {
	value, _, _ := s.getRow(keyPosition) // only names a file
	p, _ := decodePosition(value)
	return p.epoch
}

func (s *Store) writeSetAside(name string) (appends int, err error) {
	file, err := s.opts.FS.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	iter, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{prefixTail}, UpperBound: []byte{prefixTail + 1}})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, iter.Close()) }()
	if _, err := file.Write([]byte(setAsideMagic)); err != nil {
		return 0, err
	}
	for valid := iter.First(); valid; valid = iter.Next() {
		value := iter.Value()
		stream, payload := "", value // a transaction
		if len(value) >= tailAppendHeader && value[0] != tailTransaction {
			stream = s.setAsideName(StreamID(binary.BigEndian.Uint64(value[1:])))
			payload = value[tailAppendHeader:]
		}
		if _, err := file.Write(setAsideRecord(stream, payload)); err != nil {
			return 0, err
		}
		appends++
	}
	if err := iter.Error(); err != nil {
		return 0, err
	}
	if err := file.Sync(); err != nil {
		return 0, err
	}
	return appends, syncDir(s.opts.FS, s.opts.Dir)
}

// setAsideName is the stream's name, or its id if the name is gone with the
// stream.
func (s *Store) setAsideName(id StreamID) string {
	if value, ok, err := s.getRow(streamKey(id)); err == nil && ok {
		if row, err := decodeStreamRow(value); err == nil {
			return row.name
		}
	}
	return fmt.Sprintf("deleted stream %d", id)
}

func setAsideRecord(stream string, payload []byte) []byte {
	b := make([]byte, 8, 10+len(stream)+len(payload))
	b = binary.BigEndian.AppendUint16(b, uint16(len(stream)))
	b = append(append(b, stream...), payload...)
	binary.BigEndian.PutUint32(b, uint32(len(b)-8))
	binary.BigEndian.PutUint32(b[4:], crc32.Checksum(b[8:], castagnoli))
	return b
}
