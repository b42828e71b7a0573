package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strconv"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/streamstore"
)

// A problem is an error as clients see it: problem details of RFC 9457. It is an error, so that functions return it like
// any other; asProblem makes one of every error.
type problem struct {
	kind   *problemKind
	detail string
	// members are added to the JSON object, beside those of RFC 9457.
	members map[string]any
	// header is added to the reply.
	header http.Header
	// cause, if not nil, is for the log.
	cause error
}

// problemKind is a class of problems. Clients decide by the status, or by the code, which is also the end of the type.
type problemKind struct {
	status int
	code   string
	title  string
}

// problemType begins the type of every problem.
const problemType = "urn:brooklet:problem:"

var problemKinds []*problemKind

func newProblemKind(status int, code, title string) *problemKind {
	k := &problemKind{status, code, title}
	problemKinds = append(problemKinds, k)
	return k
}

// All problems, by status.
var (
	badRequest        = newProblemKind(http.StatusBadRequest, "bad-request", "The request cannot be understood")
	badName           = newProblemKind(http.StatusBadRequest, "invalid-name", "No stream can have this name")
	badRecord         = newProblemKind(http.StatusBadRequest, "invalid-record", "A record of the request cannot be appended")
	badSettings       = newProblemKind(http.StatusBadRequest, "invalid-settings", "The settings are out of range")
	badCursor         = newProblemKind(http.StatusBadRequest, "invalid-cursor", "The position to resume at cannot be understood")
	reservedName      = newProblemKind(http.StatusForbidden, "reserved-name", "The stream is the broker's own")
	epochFenced       = newProblemKind(http.StatusForbidden, "producer-fenced", "A newer producer of this name has taken over")
	foreignOrigin     = newProblemKind(http.StatusForbidden, "foreign-origin", "Web pages of this origin may not do that")
	noRoute           = newProblemKind(http.StatusNotFound, "no-such-resource", "There is nothing at this address")
	noStream          = newProblemKind(http.StatusNotFound, "stream-not-found", "The stream does not exist")
	wrongMethod       = newProblemKind(http.StatusMethodNotAllowed, "method-not-allowed", "The address does not have this method")
	notAcceptable     = newProblemKind(http.StatusNotAcceptable, "not-acceptable", "No form of the records is acceptable to the client")
	bodyTimeout       = newProblemKind(http.StatusRequestTimeout, "body-timeout", "The body of the request did not come in time")
	streamExists      = newProblemKind(http.StatusConflict, "stream-exists", "The stream exists with other settings")
	streamClosed      = newProblemKind(http.StatusConflict, "stream-closed", "The stream is closed")
	topicStream       = newProblemKind(http.StatusConflict, "topic-partition", "The stream belongs to a Kafka topic")
	sequenceGap       = newProblemKind(http.StatusConflict, "producer-sequence", "Appends of the producer are missing before this one")
	streamReplaced    = newProblemKind(http.StatusConflict, "stream-replaced", "Another stream has this name now")
	preconditionNo    = newProblemKind(http.StatusPreconditionFailed, "precondition-failed", "The condition of the request does not hold")
	tooLarge          = newProblemKind(http.StatusRequestEntityTooLarge, "too-large", "The request is too large")
	badMediaType      = newProblemKind(http.StatusUnsupportedMediaType, "unsupported-media-type", "The body has a form that is not understood")
	outOfRange        = newProblemKind(http.StatusRequestedRangeNotSatisfiable, "offset-out-of-range", "The stream has no such offset")
	tooManyStreams    = newProblemKind(http.StatusUnprocessableEntity, "too-many-streams", "The prefix has more streams than one reader may follow")
	unreadableBatch   = newProblemKind(http.StatusInternalServerError, "unreadable-records", "Records cannot be decoded")
	internalError     = newProblemKind(http.StatusInternalServerError, "internal-error", "The broker failed")
	storageError      = newProblemKind(http.StatusInternalServerError, "storage-error", "Stored records are damaged")
	busy              = newProblemKind(http.StatusServiceUnavailable, "backpressure", "The broker takes no more writes for now")
	unavailable       = newProblemKind(http.StatusServiceUnavailable, "unavailable", "The broker does not serve this now")
	unconfirmed       = newProblemKind(http.StatusGatewayTimeout, "unconfirmed", "The change was not confirmed in time, and may yet happen")
	bucketUnreachable = newProblemKind(http.StatusGatewayTimeout, "read-timeout", "The records could not be read in time")
)

func (k *problemKind) new(format string, args ...any) *problem {
	return &problem{kind: k, detail: fmt.Sprintf(format, args...)}
}

func (p *problem) Error() string { return p.kind.code + ": " + p.detail }
func (p *problem) Unwrap() error { return p.cause }

// with adds a member to the JSON object.
func (p *problem) with(name string, value any) *problem {
	if p.members == nil {
		p.members = map[string]any{}
	}
	p.members[name] = value
	return p
}

// withHeader adds a header to the reply.
func (p *problem) withHeader(name, value string) *problem {
	if p.header == nil {
		p.header = http.Header{}
	}
	p.header.Set(name, value)
	return p
}

func (p *problem) withOffset(header, member string, offset int64) *problem {
	return p.with(member, offset).withHeader(header, strconv.FormatInt(offset, 10))
}

// retryAfter is what clients are told to wait after a 503, in seconds.
const retryAfter = "1"

// MarshalJSON writes the members of RFC 9457, code, and those of the problem.
func (p *problem) MarshalJSON() ([]byte, error) {
	members := map[string]any{
		"type":   problemType + p.kind.code,
		"title":  p.kind.title,
		"status": p.kind.status,
		"detail": p.detail,
		"code":   p.kind.code,
	}
	maps.Copy(members, p.members)
	return json.Marshal(members)
}

// asProblem makes a problem of an error of this package, of the store, or of the record codec.
func asProblem(err error) *problem {
	if p, ok := errors.AsType[*problem](err); ok {
		return p
	}
	if p := storeProblem(err); p != nil {
		p.cause = err
		return p
	}
	if e, ok := errors.AsType[*kafkaproto.Error](err); ok {
		kind := badRecord
		if e.Code == kafkaproto.ErrMessageTooLarge.Code {
			kind = tooLarge
		}
		return kind.new("%s", e.Message)
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return tooLarge.new("%v", err)
	}
	p := internalError.new("%v", err)
	p.cause = err
	return p
}

// storeProblem translates an error of the store; nil means that it is none.
func storeProblem(err error) *problem {
	switch {
	case errors.Is(err, streamstore.ErrNoStream):
		return noStream.new("the stream does not exist, or was deleted")
	case errors.Is(err, streamstore.ErrInvalidName):
		return badName.new("%v", err)
	case errors.Is(err, streamstore.ErrInvalidSettings):
		return badSettings.new("%v", err)
	case errors.Is(err, streamstore.ErrOffsetOutOfRange):
		return outOfRange.new("%v", err)
	case errors.Is(err, streamstore.ErrBatchTooLarge):
		return tooLarge.new("%v", err)
	case errors.Is(err, streamstore.ErrInvalidBatch):
		return badRecord.new("%v", err)
	case errors.Is(err, streamstore.ErrBackpressure):
		return busy.new("the object store is behind, or the local disk is nearly full; nothing was written, try again").withHeader("Retry-After", retryAfter)
	case errors.Is(err, streamstore.ErrFenced), errors.Is(err, streamstore.ErrFailed), errors.Is(err, streamstore.ErrClosed):
		return unavailable.new("%v; the change may have been made", err).withHeader("Retry-After", retryAfter)
	case errors.Is(err, streamstore.ErrCorrupt):
		return storageError.new("%v", err)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return unconfirmed.new("the store did not confirm the change in time; it may be made all the same. Repeat an append with the same producer headers, or with If-Match, to not append twice")
	}
	return producerProblem(err)
}

// producerProblem translates what the store says about conditions and producers of an append.
func producerProblem(err error) *problem {
	if e, ok := errors.AsType[*streamstore.ConflictError](err); ok {
		return preconditionNo.new("the next offset is %d, not %d", e.Next, e.Expected).
			withOffset(headerNextOffset, "next_offset", e.Next).with("expected_offset", e.Expected)
	}
	if e, ok := errors.AsType[*streamstore.StreamClosedError](err); ok {
		return streamClosed.new("the stream takes no more records: it ends at offset %d", e.Next).
			withOffset(headerNextOffset, "next_offset", e.Next).withHeader(headerClosed, "true")
	}
	if e, ok := errors.AsType[*streamstore.SequenceError](err); ok {
		return sequenceGap.new("%s is %d, expected is %d: appends before this one did not arrive", headerProducerSeq, e.Got, e.Expected).
			with("received_seq", e.Got).with("expected_seq", e.Expected)
	}
	if e, ok := errors.AsType[*streamstore.ProducerEpochError](err); ok {
		return epochFenced.new("%s is %d, the current one is %d: another producer of this name has begun", headerProducerEpoch, e.Got, e.Current).
			with("received_epoch", e.Got).with("current_epoch", e.Current)
	}
	return nil
}
