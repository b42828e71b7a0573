package streamstore

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"path"
	"strconv"
)

// A checkpoint is the state of the shard as of one commit, in the bucket: tables of
// rows, the base, and bundles of the state sections of the commits after them. Its
// manifest shards/<shard>/checkpoints/<number of the commit, 20 digits> names the
// parts; it is created with create-if-absent when all parts are there, and never
// changed. Newer checkpoints name parts of older ones again.
//
// A manifest is laid out like this; integers are big-endian:
//
//	  0   8  magic "BRKLTCKP"
//	  8   2  format version, 1
//	 10   2  zero
//	 12   4  shard
//	 16  40  position of the checkpoint, below
//	 56  40  position of the base, below
//	 96   8  "ahead": the rows n, s and k of the base may hold what was appended
//	         below this append number; replay must reach it (see checkpoint.go)
//	104   8  creation time, ms since 1970
//	112   4  number of parts
//	116   4  zero
//	120  72  each part, below
//	     4   CRC-32C of all bytes before
//	     8   magic "BRKLTEND"
//
// A position is a commit: its number (8), epoch (8), nonce (16), and the append
// number after its last (8). The writer of the commit is the writer of the manifest.
//
// A part, first the bundles' and the tables' common fields:
//
//	 0   1  kind: 1 table, 2 bundle
//	 1   1  level of a bundle: how often its content has been merged; 0 for a table
//	 2   2  zero
//	 4   4  CRC-32C of the object
//	 8   8  size of the object
//	16   8  bundle: number of the live commit before its first; 0 for a table
//	24   8  bundle: number of its last commit; 0 for a table
//	32  40  its name: number (8), epoch (8), nonce (16), sequence (8)
//
// The tables come first, in key order, then the bundles in commit order: the first
// begins at the base, each goes on where the one before ends, the last ends at the
// checkpoint's commit.
const (
	manifestMagic      = "BRKLTCKP"
	manifestVersion    = 1
	manifestHeaderSize = 120
	manifestPartSize   = 72
	manifestFooterSize = 12

	// maxManifestParts bounds what a damaged count makes a reader believe.
	maxManifestParts = 1 << 20
)

// partKind tells what is in an object of the folder state.
type partKind uint8

const (
	// partTable is a sorted table of Pebble (sstable, format Pebblev4) with rows n,
	// s, k, e, g and p, each set once.
	partTable partKind = 1
	// partBundle holds state sections, see bundle.go.
	partBundle partKind = 2
)

// partName is the identity of a part. It has the position and the nonce of the writer
// that uploaded it and a number that this writer uses once, so that no two uploads
// ever have the same name.
type partName struct {
	number   uint64 // commit that the writer was at
	epoch    uint64
	nonce    nonce
	sequence uint64
}

// part is one object of a checkpoint.
type part struct {
	kind        partKind
	level       uint8
	crc         uint32
	size        int64
	after, last uint64 // bundle: its commits are those after after, up to last
	name        partName
}

// manifest describes a checkpoint.
type manifest struct {
	shard    uint32
	position position
	base     position
	ahead    uint64 // append number
	created  int64  // ms since 1970
	parts    []part
}

// bytes are the sizes of the parts of one kind.
func (m *manifest) bytes(kind partKind) (total int64) {
	for i := range m.parts {
		if m.parts[i].kind == kind {
			total += m.parts[i].size
		}
	}
	return total
}

func appendFixedPosition(b []byte, p position) []byte {
	b = binary.BigEndian.AppendUint64(b, p.number)
	b = binary.BigEndian.AppendUint64(b, p.epoch)
	b = append(b, p.nonce[:]...)
	return binary.BigEndian.AppendUint64(b, p.appendTo)
}

func fixedPosition(b []byte) position {
	return position{
		number:   binary.BigEndian.Uint64(b),
		epoch:    binary.BigEndian.Uint64(b[8:]),
		nonce:    nonce(b[16:32]),
		appendTo: binary.BigEndian.Uint64(b[32:]),
	}
}

func (m *manifest) encode() []byte {
	be := binary.BigEndian
	b := make([]byte, 0, manifestHeaderSize+len(m.parts)*manifestPartSize+manifestFooterSize)
	b = append(b, manifestMagic...)
	b = be.AppendUint16(b, manifestVersion)
	b = be.AppendUint16(b, 0)
	b = be.AppendUint32(b, m.shard)
	b = appendFixedPosition(b, m.position)
	b = appendFixedPosition(b, m.base)
	b = be.AppendUint64(b, m.ahead)
	b = be.AppendUint64(b, uint64(m.created))
	b = be.AppendUint32(b, uint32(len(m.parts)))
	b = be.AppendUint32(b, 0)
	for i := range m.parts {
		p := &m.parts[i]
		b = append(b, byte(p.kind), p.level, 0, 0)
		b = be.AppendUint32(b, p.crc)
		b = be.AppendUint64(b, uint64(p.size))
		b = be.AppendUint64(b, p.after)
		b = be.AppendUint64(b, p.last)
		b = be.AppendUint64(b, p.name.number)
		b = be.AppendUint64(b, p.name.epoch)
		b = append(b, p.name.nonce[:]...)
		b = be.AppendUint64(b, p.name.sequence)
	}
	b = be.AppendUint32(b, crc32.Checksum(b, castagnoli))
	return append(b, commitFooterMagic...)
}

// decodeManifest checks and decodes the manifest of the checkpoint of commit number.
func decodeManifest(where string, shard uint32, number uint64, b []byte) (*manifest, error) {
	be := binary.BigEndian
	corrupt := func(at int, what string, found, expected any) (*manifest, error) {
		return nil, &CorruptError{Where: where, Position: int64(at), What: what, Found: found, Expected: expected}
	}
	if len(b) < manifestHeaderSize+manifestFooterSize {
		return corrupt(0, "length", len(b), fmt.Sprintf("at least %d", manifestHeaderSize+manifestFooterSize))
	}
	if m := string(b[:8]); m != manifestMagic {
		return corrupt(0, "magic", strconv.Quote(m), strconv.Quote(manifestMagic))
	}
	if v := be.Uint16(b[8:]); v != manifestVersion {
		return corrupt(8, "format version", v, fmt.Sprintf("%d (a newer release may have written it)", manifestVersion))
	}
	end := len(b) - manifestFooterSize
	if found, expected := crc32.Checksum(b[:end], castagnoli), be.Uint32(b[end:]); found != expected {
		return corrupt(end, "checksum", found, expected)
	}
	if m := string(b[end+4:]); m != commitFooterMagic {
		return corrupt(end+4, "footer magic", strconv.Quote(m), strconv.Quote(commitFooterMagic))
	}
	count := be.Uint32(b[112:])
	if count > maxManifestParts || int(count)*manifestPartSize != end-manifestHeaderSize {
		return corrupt(112, "number of parts", count, (end-manifestHeaderSize)/manifestPartSize)
	}
	m := &manifest{
		shard:    be.Uint32(b[12:]),
		position: fixedPosition(b[16:]),
		base:     fixedPosition(b[56:]),
		ahead:    be.Uint64(b[96:]),
		created:  int64(be.Uint64(b[104:])),
		parts:    make([]part, count),
	}
	if m.shard != shard || m.position.number != number {
		return corrupt(12, "shard and number", fmt.Sprintf("%d %d", m.shard, m.position.number), fmt.Sprintf("%d %d", shard, number))
	}
	next := m.base.number // the next bundle goes on from here
	for i := range m.parts {
		at := manifestHeaderSize + i*manifestPartSize
		p := decodePart(b[at:])
		m.parts[i] = p
		switch {
		case p.size <= 0 || p.size > maxPartBytes:
			return corrupt(at+8, "size of a part", p.size, fmt.Sprintf("1 to %d", maxPartBytes))
		case p.kind == partTable && next == m.base.number:
		case p.kind == partBundle && p.after == next && p.last > next:
			next = p.last
		default:
			return corrupt(at, "order of parts", fmt.Sprintf("kind %d after commit %d to %d", p.kind, p.after, p.last), fmt.Sprintf("tables, then bundles going on after commit %d", next))
		}
	}
	if next != m.position.number {
		return corrupt(16, "commit reached by the parts", next, m.position.number)
	}
	return m, nil
}

func decodePart(b []byte) part {
	be := binary.BigEndian
	return part{
		kind:  partKind(b[0]),
		level: b[1],
		crc:   be.Uint32(b[4:]),
		size:  int64(be.Uint64(b[8:])),
		after: be.Uint64(b[16:]),
		last:  be.Uint64(b[24:]),
		name: partName{
			number:   be.Uint64(b[32:]),
			epoch:    be.Uint64(b[40:]),
			nonce:    nonce(b[48:64]),
			sequence: be.Uint64(b[64:]),
		},
	}
}

// checkpointDir is the folder of a shard's manifests.
func checkpointDir(shard uint32) string { return path.Join(shardDir(shard), "checkpoints") }

// checkpointName is the object name of the manifest of the checkpoint of a commit.
func checkpointName(shard uint32, number uint64) string {
	return fmt.Sprintf("%s/%020d", checkpointDir(shard), number)
}

// parseCheckpointName is the reverse of checkpointName; ok is false for names of
// other things, which are left alone.
func parseCheckpointName(shard uint32, name string) (number uint64, ok bool) {
	number, err := strconv.ParseUint(path.Base(name), 10, 64)
	return number, err == nil && checkpointName(shard, number) == name
}

// stateDir is the folder of the parts of a shard's checkpoints.
func stateDir(shard uint32) string { return path.Join(shardDir(shard), "state") }

// object is the object name of a part:
// <number, 20 digits>-<epoch>-<nonce, 32 hexadecimal digits>-<sequence>.
func (n partName) object(shard uint32) string {
	return fmt.Sprintf("%s/%020d-%d-%x-%d", stateDir(shard), n.number, n.epoch, n.nonce[:], n.sequence)
}

// parsePartName is the reverse of partName.object; ok is false for names of other
// things.
func parsePartName(shard uint32, name string) (n partName, ok bool) {
	var id []byte
	if _, err := fmt.Sscanf(path.Base(name), "%020d-%d-%x-%d", &n.number, &n.epoch, &id, &n.sequence); err != nil || len(id) != len(n.nonce) {
		return n, false
	}
	n.nonce = nonce(id)
	return n, n.object(shard) == name
}
