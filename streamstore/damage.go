package streamstore

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"path"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"
)

// A damaged file of the local database costs what is in it and nothing else: reads that
// need it fail, with an error, and so does a start. The store itself goes on, because
// the rest is as good as it was.

// damageAdvice tells a person what to do about it.
const damageAdvice = "restore it from a copy of the disk, or move it away and start again: all that had reached the bucket " +
	"is read from there, but with local durability the records of the last flushes are in this folder alone"

// explainDamage makes an error of a damaged database say which file it is and what can
// be done. Other errors are returned as they are.
func (s *Store) explainDamage(err error) error {
	if err == nil || !pebble.IsCorruptionError(err) {
		return err
	}
	file := s.opts.dbDir()
	if info := pebble.ExtractDataCorruptionInfo(err); info != nil {
		file = info.Path
	}
	return fmt.Errorf("%w: %s: the database in %s is damaged; %s: %w", ErrCorrupt, file, s.opts.dbDir(), damageAdvice, err)
}

// reportDamage is called by the database when it finds damage. Without it the database
// would end the process.
func (s *Store) reportDamage(info pebble.DataCorruptionInfo) {
	s.log.Error("a file of the database is damaged; "+damageAdvice, zap.String("file", info.Path),
		zap.String("data_dir", s.opts.Dir), zap.NamedError("details", info.Details))
}

// Pebble takes a record of its logs that does not check out for the end of the log,
// because a crash leaves such records there. What stood behind it would be gone without
// a word, so two things are looked at when the database is opened.

// checkManifest refuses a list of tables, Pebble's MANIFEST, that has an invalid record
// before a valid one: each is synced before the next is written, so that is no crash. The
// last record alone cannot be told from one that a crash cut off.
//
// A record is a chunk or several: checksum (4 bytes, little-endian), length of the
// payload (2), kind (1, from 1 to 4), payload. Chunks do not cross blocks of 32 KiB.
func (s *Store) checkManifest() error {
	desc, err := pebble.Peek(s.opts.dbDir(), s.opts.FS)
	if err != nil || !desc.Exists {
		return nil // opening it tells more
	}
	data, err := readWhole(s.opts.FS, desc.ManifestFilename)
	if err != nil {
		return nil // as above
	}
	end := 0
	for {
		n := chunkLength(data, end)
		if n == 0 {
			break
		}
		end += n
	}
	for at := end + 1; at < len(data); at++ {
		if chunkLength(data, at) > 0 {
			return &CorruptError{Where: desc.ManifestFilename, Position: int64(end), What: "record", Found: "damaged", Expected: "valid, as the one behind it; " + damageAdvice}
		}
	}
	return nil
}

const (
	chunkBlock  = 32 << 10
	chunkHeader = 7
	chunkKinds  = 4
)

// chunkLength is the length of the valid chunk at a position, with what fills up its
// block if no other one fits there; 0 if there is none.
func chunkLength(data []byte, at int) int {
	room := chunkBlock - at%chunkBlock
	if room < chunkHeader {
		return min(room, len(data)-at)
	}
	if len(data)-at < chunkHeader {
		return 0
	}
	b := data[at:]
	n := chunkHeader + int(binary.LittleEndian.Uint16(b[4:]))
	if kind := b[6]; kind < 1 || kind > chunkKinds || n > min(room, len(b)) {
		return 0
	}
	// Pebble stores the checksum rotated, as LevelDB does.
	crc := crc32.Checksum(b[6:n], castagnoli)
	if binary.LittleEndian.Uint32(b) != (crc>>15|crc<<17)+0xa282ead8 {
		return 0
	}
	return n
}

func readWhole(fs vfs.FS, name string) ([]byte, error) {
	file, err := fs.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(file)
}

// witness is a file beside the database that tells how far the tail has been synced:
//
//	magic "BRKLTSYN" (8), append number after the last that is synced (8), CRC-32C of
//	both (4); integers are big-endian
//
// It is written behind the sync and before the acknowledgement, and is not synced itself,
// so it never tells of more than there is, and after a loss of power perhaps of less.
type witness struct {
	file vfs.File
	buf  [witnessSize]byte
}

const (
	witnessMagic = "BRKLTSYN"
	witnessSize  = 20
)

// witnessPath is in the folder of the database, because it tells of that one alone.
func (o *Options) witnessPath() string { return path.Join(o.dbDir(), "synced") }

// checkWitness opens the witness and refuses a database that has less than it tells of.
func (s *Store) checkWitness() (err error) {
	end, err := s.localEnd()
	if err != nil {
		return err
	}
	name := s.opts.witnessPath()
	if b, err := readWhole(s.opts.FS, name); err == nil {
		if synced := decodeWitness(b); synced > end {
			return &CorruptError{Where: s.opts.dbDir(), What: "end of what was appended", Found: end,
				Expected: fmt.Sprintf("%d, as %s tells: the database's log is damaged; %s; or remove %s to do without what is missing", synced, name, damageAdvice, name)}
		}
	}
	if s.witness.file, err = s.opts.FS.OpenReadWrite(name, vfs.WriteCategoryUnspecified); err != nil {
		return fmt.Errorf("opening %s: %w", name, err)
	}
	return nil
}

// localEnd is the append number after the last that the database knows of.
func (s *Store) localEnd() (uint64, error) {
	end, err := s.localTailEnd()
	if err != nil {
		return 0, err
	}
	value, ok, err := s.getRow(keyPosition)
	if err != nil || !ok {
		return end, err
	}
	p, err := decodePosition(value)
	if err != nil {
		return 0, fmt.Errorf("position row: %w", err)
	}
	return max(end, p.appendTo), nil
}

// note tells that everything below end is synced.
func (w *witness) note(end uint64) error {
	b := w.buf[:]
	copy(b, witnessMagic)
	binary.BigEndian.PutUint64(b[8:], end)
	binary.BigEndian.PutUint32(b[16:], crc32.Checksum(b[:16], castagnoli))
	_, err := w.file.WriteAt(b, 0)
	return err
}

// decodeWitness returns 0 for what is no witness: it is a help and damage to it does no
// harm.
func decodeWitness(b []byte) uint64 {
	if len(b) != witnessSize || string(b[:8]) != witnessMagic || binary.BigEndian.Uint32(b[16:]) != crc32.Checksum(b[:16], castagnoli) {
		return 0
	}
	return binary.BigEndian.Uint64(b[8:])
}

func (w *witness) close() error {
	if w.file == nil {
		return nil
	}
	file := w.file
	w.file = nil
	return file.Close()
}
