package broker

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/brookletmq/brooklet/streamstore"
)

// Keys of the broker's rows in the store's key-value space.
const (
	topicRowPrefix = "topic/"
	clusterIDKey   = "cluster/id"
	nextProducerID = "producer/next"
)

func topicRowKey(name string) []byte { return append([]byte(topicRowPrefix), name...) }

// topicRow is what is stored about a topic, version 1:
//
//	0      1            17                  25             29
//	| 0x01 | topic id   | created, unix ms  | partitions   | config overrides
//	         16 bytes     int64               uint32         uvarint count, then for each, in order of keys:
//	                                                         uvarint length, key, uvarint length, value
//
// All integers are big endian. The streams of the partitions are found by name, so their ids are not repeated here. A
// new layout gets the next version number; rows of older ones must stay readable, because a row is only rewritten when
// its topic changes.
type topicRow struct {
	id         topicID
	created    time.Time // whole milliseconds
	partitions int32
	overrides  map[string]string
}

const topicRowVersion = 1

var errBadRow = errors.New("stored row cannot be read")

func (r topicRow) encode() []byte {
	b := append([]byte{topicRowVersion}, r.id[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(r.created.UnixMilli()))
	b = binary.BigEndian.AppendUint32(b, uint32(r.partitions))
	b = binary.AppendUvarint(b, uint64(len(r.overrides)))
	for _, key := range slices.Sorted(maps.Keys(r.overrides)) {
		b = appendString(b, key)
		b = appendString(b, r.overrides[key])
	}
	return b
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// decodeTopicRow is the inverse of encode. The error wraps errBadRow.
func decodeTopicRow(b []byte) (topicRow, error) {
	var r topicRow
	if len(b) < 29 {
		return r, fmt.Errorf("%w: %d bytes, at least 29 expected", errBadRow, len(b))
	}
	if b[0] != topicRowVersion {
		return r, fmt.Errorf("%w: version %d, only %d is known; was it written by a newer release?", errBadRow, b[0], topicRowVersion)
	}
	copy(r.id[:], b[1:17])
	r.created = time.UnixMilli(int64(binary.BigEndian.Uint64(b[17:])))
	n := binary.BigEndian.Uint32(b[25:])
	if n == 0 || n > 1<<31-1 {
		return r, fmt.Errorf("%w: %d partitions", errBadRow, n)
	}
	r.partitions = int32(n)
	var err error
	r.overrides, err = decodeOverrides(b[29:])
	return r, err
}

func decodeOverrides(b []byte) (map[string]string, error) {
	count, n := binary.Uvarint(b)
	if n <= 0 || count > uint64(len(b)) {
		return nil, fmt.Errorf("%w: bad number of config overrides", errBadRow)
	}
	b = b[n:]
	var m map[string]string
	if count > 0 {
		m = make(map[string]string, count)
	}
	for range count {
		key, rest, ok1 := cutString(b)
		value, rest, ok2 := cutString(rest)
		if !ok1 || !ok2 {
			return nil, fmt.Errorf("%w: config overrides are cut short", errBadRow)
		}
		m[key], b = value, rest
	}
	if len(b) != 0 {
		return nil, fmt.Errorf("%w: %d bytes after its end", errBadRow, len(b))
	}
	return m, nil
}

func cutString(b []byte) (s string, rest []byte, ok bool) {
	size, n := binary.Uvarint(b)
	if n <= 0 || size > uint64(len(b)-n) {
		return "", nil, false
	}
	b = b[n:]
	return string(b[:size]), b[size:], true
}

// loadClusterID returns the store's cluster id, a random UUID as 22 characters of base64url, and makes it once.
func loadClusterID(ctx context.Context, store *streamstore.Store) (string, error) {
	value, ok, err := store.Get([]byte(clusterIDKey))
	if err != nil || ok {
		return string(value), err
	}
	id := newTopicID().String()
	txn := streamstore.NewTxn()
	txn.Set([]byte(clusterIDKey), []byte(id))
	_, err = store.Commit(ctx, txn)
	return id, err
}
