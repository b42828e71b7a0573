package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/brookletmq/brooklet/kafkaproto/ext"
)

var (
	// ErrNoStream: there is no stream of that name.
	ErrNoStream = errors.New("stream does not exist")
	// ErrExists: Create names a stream that there is already.
	ErrExists = errors.New("stream exists already")
	// ErrInvalidName: nothing can have that name. See docs/streams.md for the rules.
	ErrInvalidName = errors.New("invalid stream name")
	// ErrTooLarge: an append is larger than the broker takes, as a batch and compressed (--max-message-bytes).
	ErrTooLarge = errors.New("the append is too large for one batch")
	// ErrTooManyStreams: more streams lie under a prefix than one follower can follow, 30,000. Follow a longer prefix.
	ErrTooManyStreams = errors.New("too many streams lie under the prefix to follow them all; follow a longer prefix")
	// ErrClientClosed: Close was called. An append with this error may or may not have happened.
	ErrClientClosed = errors.New("the client is closed")
	// ErrNotBrooklet: the broker does not announce what this package needs. It is not Brooklet, or an older release.
	ErrNotBrooklet = errors.New("the broker does not speak Brooklet's extensions of the Kafka protocol")
)

// ConflictError is the error of an append that demanded another offset than the stream's next one. Nothing was written.
type ConflictError struct {
	Stream string
	// Expected is the offset that was demanded.
	Expected int64
	// Next is the offset that the stream's next record will get.
	Next int64
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("stream %q: the next offset is %d, not %d as expected", e.Stream, e.Next, e.Expected)
}

// ClosedError is the error of an append to a closed stream. Nothing was written.
type ClosedError struct {
	Stream string
	// Next is the offset behind the last record, for good.
	Next int64
}

func (e *ClosedError) Error() string {
	return fmt.Sprintf("stream %q is closed: it ends at offset %d", e.Stream, e.Next)
}

// OutOfRangeError is the error of reading from an offset that the stream does not have: it was trimmed away, or is not
// written yet.
type OutOfRangeError struct {
	Stream string
	Offset int64
	// Start is the first offset that can be read, Next the one behind the last.
	Start, Next int64
}

func (e *OutOfRangeError) Error() string {
	if e.Start == e.Next {
		return fmt.Sprintf("stream %q has no offset %d: it is empty, and its next offset is %d", e.Stream, e.Offset, e.Next)
	}
	return fmt.Sprintf("stream %q has no offset %d: it holds %d to %d", e.Stream, e.Offset, e.Start, e.Next-1)
}

// streamError tells an error that a broker has answered with about one stream. message may be nil.
func streamError(stream string, code int16, message *string) error {
	switch err := kerr.ErrorForCode(code); {
	case code == 0:
		return nil
	case errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.UnknownTopicID):
		return fmt.Errorf("stream %q: %w", stream, ErrNoStream)
	case errors.Is(err, kerr.TopicAlreadyExists):
		return fmt.Errorf("stream %q: %w", stream, ErrExists)
	case errors.Is(err, kerr.MessageTooLarge) && message != nil:
		return fmt.Errorf("stream %q: %w: %s", stream, ErrTooLarge, *message)
	case errors.Is(err, kerr.InvalidTopicException):
		if message != nil {
			return fmt.Errorf("%w %q: %s", ErrInvalidName, stream, *message)
		}
		return fmt.Errorf("%w %q", ErrInvalidName, stream)
	case message != nil:
		return fmt.Errorf("stream %q: %s: %w", stream, *message, err)
	default:
		return fmt.Errorf("stream %q: %w", stream, err)
	}
}

// worthRetrying tells codes of one stream that a later try may cure. A stream that does not exist is not among them: it is
// made by writing to it, unless the broker forbids that.
func worthRetrying(code int16) bool {
	return code != ext.CodeConflict && code != ext.CodeClosed &&
		code != kerr.UnknownTopicOrPartition.Code && code != kerr.UnknownTopicID.Code &&
		kerr.IsRetriable(kerr.ErrorForCode(code))
}

// final are the errors that another try cannot cure.
var final = []error{kgo.ErrClientClosed, ErrClientClosed, context.Canceled, ErrNotBrooklet, errBadRecords, ErrNoStream, ErrExists, ErrInvalidName, ErrTooManyStreams}

// worthReconnecting tells errors of a whole request after which the next try may find the broker. An error that a broker
// has answered with is not, unless it says so.
func worthReconnecting(err error) bool {
	var answered *kerr.Error
	var outOfRange *OutOfRangeError
	for _, f := range final {
		if errors.Is(err, f) {
			return false
		}
	}
	switch {
	case errors.As(err, &outOfRange):
		return false
	case errors.As(err, &answered):
		return answered.Retriable
	}
	return true
}
