package streamstore

import (
	"errors"
	"fmt"
)

// Errors of the store. Callers compare with errors.Is; the broker maps each to
// a Kafka error code in one table.
var (
	// ErrNoStream: no stream of that name or id exists (any more).
	ErrNoStream = errors.New("stream does not exist")
	// ErrStreamExists: Txn.Create names a stream that exists already.
	ErrStreamExists = errors.New("stream already exists")
	// ErrInvalidName: the name breaks a rule of ValidateName.
	ErrInvalidName = errors.New("invalid stream name")
	// ErrOffsetOutOfRange: the offset lies below the start offset or above the
	// next offset (for a trim: above the high watermark).
	ErrOffsetOutOfRange = errors.New("offset out of range")
	// ErrConflict: the expected offset of an append is not the next offset. The
	// error is a *ConflictError, which carries the real one.
	ErrConflict = errors.New("expected offset does not match")
	// ErrBatchTooLarge: a batch is larger than Options.MaxBatchBytes.
	ErrBatchTooLarge = errors.New("record batch is larger than the limit")
	// ErrInvalidBatch: bytes handed to Append are not one RecordBatch v2.
	ErrInvalidBatch = errors.New("not a record batch of format version 2")
	// ErrOutOfOrderSequence: an idempotent batch neither follows its producer's
	// last batch nor repeats one of the last five (KIP-98). The error is a
	// *SequenceError.
	ErrOutOfOrderSequence = errors.New("producer sequence is out of order")
	// ErrInvalidProducerEpoch: an idempotent batch carries an epoch lower than
	// the highest seen for its producer id. The error is a *ProducerEpochError.
	ErrInvalidProducerEpoch = errors.New("producer epoch is stale")
	// ErrBackpressure: too many bytes wait for the bucket (or the local disk is
	// nearly full) and the caller's time ran out before there was room. Nothing
	// was appended; try again.
	ErrBackpressure = errors.New("the store takes no more writes for now")
	// ErrFenced: another writer has claimed the shard. This store acknowledges
	// nothing more.
	ErrFenced = errors.New("fenced: another writer has claimed this shard")
	// ErrFailed: the local disk failed a write. This store acknowledges nothing
	// more until it is opened again.
	ErrFailed = errors.New("the store has failed")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("the store is closed")
	// ErrCorrupt: stored bytes do not check out. The error is a *CorruptError, unless
	// they are those of the local database.
	ErrCorrupt = errors.New("corrupt data")
	// ErrInvalidSettings: stream settings outside their range.
	ErrInvalidSettings = errors.New("invalid stream settings")
	// ErrStreamClosed: the stream takes no more appends. The error is a
	// *StreamClosedError, which carries the final offset.
	ErrStreamClosed = errors.New("stream is closed")
)

// StreamClosedError is the error of an append to a closed stream.
type StreamClosedError struct {
	Next int64 // the offset after the last record, for ever
}

func (e *StreamClosedError) Error() string {
	return fmt.Sprintf("%v: it ends at offset %d", ErrStreamClosed, e.Next)
}

// Is makes errors.Is(err, ErrStreamClosed) true.
func (e *StreamClosedError) Is(target error) bool { return target == ErrStreamClosed }

// SequenceError is the error of an idempotent append that is out of order.
type SequenceError struct {
	Got, Expected int32 // sequence numbers of the batch's first record
}

func (e *SequenceError) Error() string {
	return fmt.Sprintf("%v: it is %d, expected is %d", ErrOutOfOrderSequence, e.Got, e.Expected)
}

// Is makes errors.Is(err, ErrOutOfOrderSequence) true.
func (e *SequenceError) Is(target error) bool { return target == ErrOutOfOrderSequence }

// ProducerEpochError is the error of an idempotent append of an outdated producer.
type ProducerEpochError struct {
	Got, Current int16
}

func (e *ProducerEpochError) Error() string {
	return fmt.Sprintf("%v: it is %d, the current one is %d", ErrInvalidProducerEpoch, e.Got, e.Current)
}

// Is makes errors.Is(err, ErrInvalidProducerEpoch) true.
func (e *ProducerEpochError) Is(target error) bool { return target == ErrInvalidProducerEpoch }

// ConflictError is the error of an append whose expected offset was wrong.
type ConflictError struct {
	Expected int64 // what the writer expected
	Next     int64 // the offset that the next record will get
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("%v: expected %d, the next offset is %d", ErrConflict, e.Expected, e.Next)
}

// Is makes errors.Is(err, ErrConflict) true.
func (e *ConflictError) Is(target error) bool { return target == ErrConflict }

// CorruptError tells where stored bytes do not check out, what was found and
// what was expected.
type CorruptError struct {
	Where           string // object name or key
	Position        int64  // byte position within it
	What            string // the field
	Found, Expected any
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("%v: %s at byte %d: %s is %v, expected %v", ErrCorrupt, e.Where, e.Position, e.What, e.Found, e.Expected)
}

// Is makes errors.Is(err, ErrCorrupt) true.
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt }
