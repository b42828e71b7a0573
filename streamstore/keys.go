package streamstore

import (
	"encoding/binary"
)

// The local database (Pebble) holds these rows. Numbers in keys are eight bytes,
// big-endian, so that key order is number order.
//
//	n <name>                       stream id (8 bytes)
//	s <stream id>                  stream row: name, start offset, settings
//	k <key>                        key-value space of catalogue and coordinators
//	e <stream id> <last offset>    extent row: where a run of batches lies
//	p <stream id> <producer id>    producer row: last batches of a producer
//	g <kind> <number>              object row: an object of the bucket that holds records
//	t <append number>              tail entry: appended, not yet in the bucket
//	l position                     newest commit applied to this database
//	l claims                       nonces under which this database claimed
//	l cache                        identity of the disk cache (16 bytes)
//	l ahead                        append number that replay must reach, see coldstart.go
//	l damaged                      checkpoints that are not to be built upon, see checkpoint.go
//
// Rows n, s and k change when a transaction is appended, in append order; rows
// e, p and g change when a commit becomes durable, in commit order. The two sets
// are disjoint, so neither order can undo the other. Rows n, s, k, e, p, g are a
// pure function of the commit log; rows t and l belong to this disk alone.
const (
	prefixName     = 'n'
	prefixStream   = 's'
	prefixKV       = 'k'
	prefixExtent   = 'e'
	prefixProducer = 'p'
	prefixObject   = 'g'
	prefixTail     = 't'
	prefixLocal    = 'l'
)

var (
	keyPosition = []byte("l position")
	keyClaims   = []byte("l claims")
	keyCache    = []byte("l cache")
	keyAhead    = []byte("l ahead")
	keyDamaged  = []byte("l damaged")
)

func nameKey(name string) []byte { return append([]byte{prefixName}, name...) }

func kvKey(key []byte) []byte { return append([]byte{prefixKV}, key...) }

func numberKey(prefix byte, numbers ...uint64) []byte {
	key := make([]byte, 1, 1+8*len(numbers))
	key[0] = prefix
	for _, n := range numbers {
		key = binary.BigEndian.AppendUint64(key, n)
	}
	return key
}

func streamKey(id StreamID) []byte { return numberKey(prefixStream, uint64(id)) }

func extentKey(id StreamID, last int64) []byte {
	return numberKey(prefixExtent, uint64(id), uint64(last))
}

func producerKey(id StreamID, producer int64) []byte {
	return numberKey(prefixProducer, uint64(id), uint64(producer))
}

func tailKey(number uint64) []byte { return numberKey(prefixTail, number) }

// streamSpan is the range of all rows of one stream under a prefix.
func streamSpan(prefix byte, id StreamID) (lower, upper []byte) {
	return numberKey(prefix, uint64(id)), numberKey(prefix, uint64(id)+1)
}

// prefixEnd is the first key after all keys that begin with prefix; nil when
// there is none.
func prefixEnd(prefix []byte) []byte {
	end := append([]byte(nil), prefix...)
	for i := len(end) - 1; i >= 0; i-- {
		end[i]++
		if end[i] != 0 {
			return end[:i+1]
		}
	}
	return nil
}

// keyNumber reads the i-th number of a key made by numberKey.
func keyNumber(key []byte, i int) uint64 { return binary.BigEndian.Uint64(key[1+8*i:]) }

// extentKeySize is the size of a key made by extentKey.
const extentKeySize = 1 + 8 + 8
