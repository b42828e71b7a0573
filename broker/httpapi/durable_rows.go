package httpapi

import (
	"encoding/binary"
	"errors"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/streamstore"
)

// Rows of Durable Streams in the store's key-value space. A stream id is 8 bytes, big-endian; all other numbers are, too.
//
//	durable/seq/<id>            the largest Stream-Seq that was appended, as it came
//	durable/closer/<id>         who closed the stream without an append: producer id (8 bytes), epoch (2), sequence (4)
//	durable/origin/<id>         of a fork: version 1 (1 byte), id of the source (8), the first offset that was not taken of it
//	                            (8), what the request said of the position past its offset (8), name of the source
//	durable/fork/<source><id>   there is a fork: empty
//	durable/gone/<name>         id of the stream of this name that was deleted while there were forks of it
//	durable/gone-id/<id>        its name
//
// Why here: an append writes the sequence in one step with its records (AppendRequest.Rows), so that a crash leaves both or
// neither; a record's header would do that as well, but finding the newest one means reading back through whatever was
// appended without. What the protocol says beside this is in the stream's settings, and in the store's own state of
// producers.
//
// Rows that belong to a stream may outlive it, because it can be deleted through every door. Ids are never used again, so
// they do no harm, and sweepRows takes them away. How many forks a stream has is not counted: a count could come to be
// wrong. A stream that was deleted keeps its name as long as one of its forks exists, or keeps its own name for the same
// reason.
const (
	rowSeq    = "durable/seq/"
	rowCloser = "durable/closer/"
	rowOrigin = "durable/origin/"
	rowFork   = "durable/fork/"
	rowGone   = "durable/gone/"
	rowGoneID = "durable/gone-id/"
)

func idRow(prefix string, ids ...streamstore.StreamID) []byte {
	key := []byte(prefix)
	for _, id := range ids {
		key = binary.BigEndian.AppendUint64(key, uint64(id))
	}
	return key
}

var errBadRow = errors.New("httpapi: stored row cannot be read; was it written by a newer release?")

// rowIDs reads the ids at the end of a key.
func rowIDs(key []byte, prefix string) (ids []streamstore.StreamID, err error) {
	b := key[len(prefix):]
	for ; len(b) >= 8; b = b[8:] {
		ids = append(ids, streamstore.StreamID(binary.BigEndian.Uint64(b)))
	}
	if len(b) > 0 || len(ids) == 0 {
		return nil, errBadRow
	}
	return ids, nil
}

// closer is a producer's request to close a stream without an append.
type closer kafkaproto.ProducerState

func (c closer) encode() []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(c.ID))
	b = binary.BigEndian.AppendUint16(b, uint16(c.Epoch))
	return binary.BigEndian.AppendUint32(b, uint32(c.Sequence))
}

// closedBy tells whether this producer's request has closed the stream.
func (s *Server) closedBy(id streamstore.StreamID, p *kafkaproto.ProducerState) (bool, error) {
	if p == nil {
		return false, nil
	}
	value, ok, err := s.store.Get(idRow(rowCloser, id))
	return ok && string(value) == string(closer(*p).encode()), err
}

// origin says where a fork comes from.
type origin struct {
	source streamstore.StreamID
	name   string // of the source, when the fork was made
	// offset is what the request said, or the tail that the source had then; sub is its position past that.
	offset, sub int64
}

const originVersion = 1

func (o origin) encode() []byte {
	b := []byte{originVersion}
	b = binary.BigEndian.AppendUint64(b, uint64(o.source))
	b = binary.BigEndian.AppendUint64(b, uint64(o.offset))
	b = binary.BigEndian.AppendUint64(b, uint64(o.sub))
	return append(b, o.name...)
}

func decodeOrigin(b []byte) (o origin, err error) {
	if len(b) < 25 || b[0] != originVersion {
		return o, errBadRow
	}
	o.source = streamstore.StreamID(binary.BigEndian.Uint64(b[1:]))
	o.offset = int64(binary.BigEndian.Uint64(b[9:]))
	o.sub = int64(binary.BigEndian.Uint64(b[17:]))
	o.name = string(b[25:])
	return o, nil
}

// originOf returns where a stream comes from, nil if it is no fork.
func (s *Server) originOf(id streamstore.StreamID) (*origin, error) {
	value, ok, err := s.store.Get(idRow(rowOrigin, id))
	if err != nil || !ok {
		return nil, err
	}
	o, err := decodeOrigin(value)
	return &o, err
}

// isGone tells whether a name is kept for the forks of the stream that had it.
func (s *Server) isGone(name string) (bool, error) {
	value, ok, err := s.store.Get([]byte(rowGone + name))
	if err != nil || !ok {
		return false, err
	}
	if len(value) != 8 {
		return false, errBadRow
	}
	return s.hasForks(streamstore.StreamID(binary.BigEndian.Uint64(value)))
}

var errFound = errors.New("found")

// hasForks tells whether there is a fork of a stream, or one of a fork that was deleted, and so on.
func (s *Server) hasForks(id streamstore.StreamID) (bool, error) {
	for todo := []streamstore.StreamID{id}; len(todo) > 0; {
		prefix := string(idRow(rowFork, todo[len(todo)-1]))
		todo = todo[:len(todo)-1]
		err := s.store.Scan([]byte(prefix), func(key, _ []byte) error {
			ids, err := rowIDs(key, prefix)
			if err != nil {
				return err
			}
			exists, err := s.exists(ids[0])
			if err == nil && exists {
				return errFound
			}
			if _, gone, getErr := s.store.Get(idRow(rowGoneID, ids[0])); gone {
				todo = append(todo, ids[0])
			} else {
				err = errors.Join(err, getErr)
			}
			return err
		})
		if err == errFound {
			return true, nil
		}
		if err != nil {
			return false, err
		}
	}
	return false, nil
}

// exists tells whether a stream exists and has not expired.
func (s *Server) exists(id streamstore.StreamID) (bool, error) {
	info, err := s.store.Describe(id)
	if errors.Is(err, streamstore.ErrNoStream) {
		return false, nil
	}
	return err == nil && !info.Expired(time.Now()), err
}

// unsetRows adds the removal of the rows of a stream to txn.
func (s *Server) unsetRows(txn *streamstore.Txn, id streamstore.StreamID) error {
	for _, prefix := range []string{rowSeq, rowCloser, rowOrigin} {
		txn.Unset(idRow(prefix, id))
	}
	o, err := s.originOf(id)
	if o != nil && err == nil {
		txn.Unset(idRow(rowFork, o.source, id))
	}
	return err
}

// sweepEvery is after how many created and deleted streams rows are swept.
const sweepEvery = 1000

// maySweep sweeps in the background, if it is time.
func (s *Server) maySweep() {
	if s.durable.changes.Add(1)%sweepEvery != 0 || !s.durable.sweeping.CompareAndSwap(false, true) {
		return
	}
	s.background.Go(func() {
		defer s.durable.sweeping.Store(false)
		if err := s.sweepRows(); err != nil {
			s.log.Warn("sweeping the rows of deleted streams", zap.Error(err))
		}
	})
}

var errDraining = errors.New("httpapi: the server stops")

// sweepRows removes the rows of streams that do not exist any more.
func (s *Server) sweepRows() error {
	for _, prefix := range []string{rowSeq, rowCloser, rowOrigin, rowFork, rowGoneID} {
		var dead [][]byte
		err := s.store.Scan([]byte(prefix), func(key, value []byte) error {
			if s.isDraining() {
				return errDraining
			}
			ids, err := rowIDs(key, prefix)
			if err != nil {
				return err
			}
			needed, err := s.rowNeeded(prefix, ids[len(ids)-1])
			if err == nil && !needed {
				dead = append(dead, append([]byte(nil), key...))
				if prefix == rowGoneID {
					dead = append(dead, append([]byte(rowGone), value...))
				}
			}
			return err
		})
		if err == errDraining {
			return nil
		}
		if err := errors.Join(err, s.unsetAll(dead)); err != nil {
			return err
		}
	}
	return nil
}

// rowNeeded tells whether a row of a stream is needed: the stream exists, or was deleted and has forks.
func (s *Server) rowNeeded(prefix string, id streamstore.StreamID) (bool, error) {
	if _, err := s.store.Describe(id); !errors.Is(err, streamstore.ErrNoStream) {
		return err == nil && prefix != rowGoneID, err
	}
	if prefix == rowSeq || prefix == rowCloser {
		return false, nil
	}
	if _, gone, err := s.store.Get(idRow(rowGoneID, id)); err != nil || !gone {
		return false, err
	}
	return s.hasForks(id)
}

// sweepBatch bounds the rows that are removed in one transaction.
const sweepBatch = 500

func (s *Server) unsetAll(keys [][]byte) error {
	for len(keys) > 0 {
		n := min(len(keys), sweepBatch)
		txn := streamstore.NewTxn()
		for _, key := range keys[:n] {
			if name, ok := strings.CutPrefix(string(key), rowGone); ok {
				if kept, err := s.isGone(name); kept || err != nil {
					continue // another stream of this name was deleted meanwhile
				}
			}
			txn.Unset(key)
		}
		keys = keys[n:]
		ctx, cancel := s.appendContext()
		_, err := s.store.Commit(ctx, txn)
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}
