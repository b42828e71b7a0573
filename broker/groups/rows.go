package groups

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// Keys of the rows, as bytes. In a key of an offset, '%' and '/' in the names are written %25 and %2F, so that the
// slashes of the key are those between its parts, and different names have different keys:
//
//	group/<group>                                  a group
//	group-offset/<group>/<topic>/<partition>       a committed offset; the partition in decimal
const (
	groupPrefix  = "group/"
	offsetPrefix = "group-offset/"
)

func groupKey(group string) []byte { return append([]byte(groupPrefix), group...) }

// offsetsKey is the prefix of the keys of a group's offsets.
func offsetsKey(group string) []byte {
	b := make([]byte, 0, len(offsetPrefix)+len(group)+64)
	return append(appendEscaped(append(b, offsetPrefix...), group), '/')
}

func offsetKey(group, topic string, partition int32) []byte {
	b := append(appendEscaped(offsetsKey(group), topic), '/')
	return strconv.AppendInt(b, int64(partition), 10)
}

func appendEscaped(b []byte, name string) []byte {
	for i := range len(name) {
		switch name[i] {
		case '%':
			b = append(b, "%25"...)
		case '/':
			b = append(b, "%2F"...)
		default:
			b = append(b, name[i])
		}
	}
	return b
}

// parseOffsetKey reads what follows the group in the key of an offset.
func parseOffsetKey(b []byte) (topic string, partition int32, err error) {
	escaped, number, ok := bytes.Cut(b, []byte("/"))
	if !ok {
		return "", 0, fmt.Errorf("%w: key of an offset ends with %q", errBadRow, b)
	}
	if topic, err = unescape(escaped); err != nil {
		return "", 0, err
	}
	n, err := strconv.ParseInt(string(number), 10, 32)
	if err != nil || strconv.FormatInt(n, 10) != string(number) {
		return "", 0, fmt.Errorf("%w: partition %q", errBadRow, number)
	}
	return topic, int32(n), nil
}

// parseOffsetOwner reads the group and the topic in the key of an offset.
func parseOffsetOwner(key []byte) (group, topic string, err error) {
	escaped, rest, _ := bytes.Cut(bytes.TrimPrefix(key, []byte(offsetPrefix)), []byte("/"))
	if group, err = unescape(escaped); err != nil {
		return "", "", err
	}
	topic, _, err = parseOffsetKey(rest)
	return group, topic, err
}

func unescape(b []byte) (string, error) {
	var out []byte
	for {
		i := bytes.IndexByte(b, '%')
		if i < 0 {
			return string(append(out, b...)), nil
		}
		out = append(out, b[:i]...)
		switch {
		case bytes.HasPrefix(b[i:], []byte("%25")):
			out = append(out, '%')
		case bytes.HasPrefix(b[i:], []byte("%2F")):
			out = append(out, '/')
		default:
			return "", fmt.Errorf("%w: name %q", errBadRow, b)
		}
		b = b[i+3:]
	}
}

var errBadRow = errors.New("stored row cannot be read")

// offsetRow is what is stored about a committed offset, version 1:
//
//	0      1         9               13                    21           37
//	| 0x01 | offset  | leader epoch  | committed, unix ms  | topic id   | metadata
//	         int64     int32, -1:none  int64                 16 bytes     the rest
//
// Integers are big endian. The topic id tells whether the topic is still the one that the offset is of.
type offsetRow struct {
	offset      int64
	leaderEpoch int32
	committed   time.Time // whole milliseconds
	topicID     [16]byte
	metadata    string
}

const (
	offsetRowVersion = 1
	offsetRowSize    = 37 // without metadata
)

func (r *offsetRow) encode() []byte {
	b := make([]byte, 0, offsetRowSize+len(r.metadata))
	b = append(b, offsetRowVersion)
	b = binary.BigEndian.AppendUint64(b, uint64(r.offset))
	b = binary.BigEndian.AppendUint32(b, uint32(r.leaderEpoch))
	b = binary.BigEndian.AppendUint64(b, uint64(r.committed.UnixMilli()))
	b = append(b, r.topicID[:]...)
	return append(b, r.metadata...)
}

// decodeOffsetRow is the inverse of encode. The error wraps errBadRow.
func decodeOffsetRow(b []byte) (offsetRow, error) {
	if err := checkVersion(b, offsetRowVersion); err != nil {
		return offsetRow{}, err
	}
	if len(b) < offsetRowSize {
		return offsetRow{}, fmt.Errorf("%w: %d bytes, at least %d expected", errBadRow, len(b), offsetRowSize)
	}
	return offsetRow{
		offset:      int64(binary.BigEndian.Uint64(b[1:])),
		leaderEpoch: int32(binary.BigEndian.Uint32(b[9:])),
		committed:   time.UnixMilli(int64(binary.BigEndian.Uint64(b[13:]))),
		topicID:     [16]byte(b[21:37]),
		metadata:    string(b[37:]),
	}, nil
}

func checkVersion(b []byte, known byte) error {
	switch {
	case len(b) == 0:
		return fmt.Errorf("%w: it is empty", errBadRow)
	case b[0] != known:
		return fmt.Errorf("%w: version %d, only %d is known; was it written by a newer release?", errBadRow, b[0], known)
	}
	return nil
}

// groupRow is what is stored about a group, version 1. It is written when a rebalance is complete, when the group
// becomes empty, and with the first commit of a group that never had members.
//
//	0      1                     9              13
//	| 0x01 | since, unix ms      | generation   | protocol type, protocol, leader, members
//	         int64                 int32
//
//	members    uvarint count, then for each: member id, instance id, client id, client host,
//	           session timeout ms (uvarint), rebalance timeout ms (uvarint),
//	           protocols (uvarint count, then for each name and metadata), assignment
//
// Integers are big endian; strings and bytes are a uvarint length and the bytes. An instance id of no bytes is none, and
// so are the other names. since is when the group became empty, and without meaning while it has members. A row without
// members is an Empty group, one with members a Stable group.
type groupRow struct {
	since                          time.Time // whole milliseconds
	generation                     int32
	protocolType, protocol, leader string
	members                        []memberRow
}

type memberRow struct {
	id, instanceID, clientID, clientHost string
	sessionTimeout, rebalanceTimeout     time.Duration
	protocols                            []Protocol
	assignment                           []byte
}

const groupRowVersion = 1

func (r *groupRow) encode() []byte {
	b := append(make([]byte, 0, r.size()), groupRowVersion)
	b = binary.BigEndian.AppendUint64(b, uint64(r.since.UnixMilli()))
	b = binary.BigEndian.AppendUint32(b, uint32(r.generation))
	b = appendBytes(b, r.protocolType)
	b = appendBytes(b, r.protocol)
	b = appendBytes(b, r.leader)
	b = binary.AppendUvarint(b, uint64(len(r.members)))
	for i := range r.members {
		b = r.members[i].append(b)
	}
	return b
}

// size estimates the encoded size, from above for all but absurd lengths.
func (r *groupRow) size() int {
	n := 32 + len(r.protocolType) + len(r.protocol) + len(r.leader)
	for i := range r.members {
		m := &r.members[i]
		n += 40 + len(m.id) + len(m.instanceID) + len(m.clientID) + len(m.clientHost) + len(m.assignment)
		for _, p := range m.protocols {
			n += 6 + len(p.Name) + len(p.Metadata)
		}
	}
	return n
}

func (m *memberRow) append(b []byte) []byte {
	b = appendBytes(b, m.id)
	b = appendBytes(b, m.instanceID)
	b = appendBytes(b, m.clientID)
	b = appendBytes(b, m.clientHost)
	b = binary.AppendUvarint(b, uint64(m.sessionTimeout.Milliseconds()))
	b = binary.AppendUvarint(b, uint64(m.rebalanceTimeout.Milliseconds()))
	b = binary.AppendUvarint(b, uint64(len(m.protocols)))
	for _, p := range m.protocols {
		b = appendBytes(b, p.Name)
		b = appendBytes(b, p.Metadata)
	}
	return appendBytes(b, m.assignment)
}

func appendBytes[T ~string | ~[]byte](b []byte, s T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// decodeGroupRow is the inverse of encode. The error wraps errBadRow.
func decodeGroupRow(b []byte) (groupRow, error) {
	r, d, err := decodeGroupHead(b)
	if err != nil {
		return r, err
	}
	count := d.count(8) // each member has at least eight bytes
	if count > 0 {
		r.members = make([]memberRow, 0, count)
	}
	for range count {
		r.members = append(r.members, d.member())
	}
	if d.bad || len(d.b) != 0 {
		return r, fmt.Errorf("%w: members are cut short or followed by other bytes", errBadRow)
	}
	return r, r.check()
}

// countMembers reads the row of a group of either kind.
func countMembers(b []byte) (int, error) {
	if isConsumerRow(b) {
		row, err := decodeConsumerRow(b)
		return row.members, err
	}
	row, err := decodeGroupRow(b)
	return len(row.members), err
}

// check makes sure of what the state machine relies on.
func (r *groupRow) check() error {
	ids, instances := make(map[string]bool, len(r.members)), map[string]bool{}
	for i := range r.members {
		m := &r.members[i]
		switch {
		case ids[m.id] || instances[m.instanceID] && m.instanceID != "":
			return fmt.Errorf("%w: member %q is there twice", errBadRow, m.id)
		case !lists(m.protocols, r.protocol):
			return fmt.Errorf("%w: member %q does not list protocol %q", errBadRow, m.id, r.protocol)
		}
		ids[m.id], instances[m.instanceID] = true, true
	}
	if len(ids) > 0 && !ids[r.leader] {
		return fmt.Errorf("%w: the leader %q is no member", errBadRow, r.leader)
	}
	return nil
}

func lists(protocols []Protocol, name string) bool {
	_, ok := metadataFor(protocols, name)
	return ok
}

// decodeGroupHead reads what stands before the members.
func decodeGroupHead(b []byte) (groupRow, *rowReader, error) {
	if err := checkVersion(b, groupRowVersion); err != nil {
		return groupRow{}, nil, err
	}
	if len(b) < 13 {
		return groupRow{}, nil, fmt.Errorf("%w: %d bytes, at least 13 expected", errBadRow, len(b))
	}
	d := &rowReader{b: b[13:]}
	r := groupRow{
		since:        time.UnixMilli(int64(binary.BigEndian.Uint64(b[1:]))),
		generation:   int32(binary.BigEndian.Uint32(b[9:])),
		protocolType: d.string(),
		protocol:     d.string(),
		leader:       d.string(),
	}
	if d.bad {
		return r, nil, fmt.Errorf("%w: it is cut short", errBadRow)
	}
	return r, d, nil
}

// rowReader takes values off the front of b. A value that is not there sets bad and reads as zero.
type rowReader struct {
	b   []byte
	bad bool
}

func (d *rowReader) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.bad, d.b = true, nil
		return 0
	}
	d.b = d.b[n:]
	return v
}

// count reads a number of elements that have at least size bytes each.
func (d *rowReader) count(size int) int {
	n := d.uvarint()
	if n > uint64(len(d.b)/size) {
		d.bad, d.b = true, nil
		return 0
	}
	return int(n)
}

// bytes returns a slice of the row.
func (d *rowReader) bytes() []byte {
	n := d.count(1)
	b := d.b[:n:n]
	d.b = d.b[n:]
	return b
}

func (d *rowReader) string() string { return string(d.bytes()) }

// millis reads a duration that a request's int32 can hold.
func (d *rowReader) millis() time.Duration {
	v := d.uvarint()
	if v > 1<<31-1 {
		d.bad = true
		return 0
	}
	return time.Duration(v) * time.Millisecond
}

func (d *rowReader) member() memberRow {
	m := memberRow{id: d.string(), instanceID: d.string(), clientID: d.string(), clientHost: d.string()}
	m.sessionTimeout, m.rebalanceTimeout = d.millis(), d.millis()
	for range d.count(2) {
		m.protocols = append(m.protocols, Protocol{Name: d.string(), Metadata: bytes.Clone(d.bytes())})
	}
	m.assignment = bytes.Clone(d.bytes())
	return m
}
