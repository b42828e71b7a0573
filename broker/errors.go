package broker

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/streamstore"
)

// storeErrors maps the errors of the store, and of contexts, to what clients are told. The first match wins. An error
// that a retry may cure must map to a code that clients retry.
var storeErrors = []struct {
	err   error
	kafka *kafkaproto.Error
}{
	{streamstore.ErrNoStream, kafkaproto.ErrUnknownTopicOrPartition},
	{streamstore.ErrStreamExists, kafkaproto.ErrTopicAlreadyExists},
	{streamstore.ErrInvalidName, kafkaproto.ErrInvalidTopic},
	{streamstore.ErrInvalidSettings, kafkaproto.ErrInvalidConfig},
	{streamstore.ErrOffsetOutOfRange, kafkaproto.ErrOffsetOutOfRange},
	{streamstore.ErrBatchTooLarge, kafkaproto.ErrMessageTooLarge},
	{streamstore.ErrInvalidBatch, kafkaproto.ErrInvalidRecord},
	{streamstore.ErrCorrupt, kafkaproto.ErrKafkaStorageError},
	{streamstore.ErrOutOfOrderSequence, kafkaproto.ErrOutOfOrderSequenceNumber},
	{streamstore.ErrInvalidProducerEpoch, kafkaproto.ErrInvalidProducerEpoch},
	// Clients must not try these again: nothing would change. The codes are those of package ext.
	{streamstore.ErrConflict, kafkaproto.ErrOperationNotAttempted.WithMessage("the expected offset is not the stream's next one; nothing was written")},
	{streamstore.ErrStreamClosed, errStreamClosed},
	// Nothing was appended: the writer waits and tries again.
	{streamstore.ErrBackpressure, errBackpressure},
	// Another broker owns the data now. This code makes clients refresh their metadata, which finds it.
	{streamstore.ErrFenced, kafkaproto.ErrNotLeaderOrFollower.WithMessage("another broker has taken over this store")},
	{streamstore.ErrFailed, kafkaproto.ErrKafkaStorageError.WithMessage("the store has failed and takes no writes until the broker is restarted")},
	{streamstore.ErrClosed, kafkaproto.ErrNotLeaderOrFollower.WithMessage("the broker is shutting down")},
	// The change may be made all the same: nobody waited for the answer.
	{context.DeadlineExceeded, kafkaproto.ErrRequestTimedOut},
	{context.Canceled, kafkaproto.ErrRequestTimedOut},
}

var errStreamClosed = kafkaproto.ErrPolicyViolation.WithMessage("the stream is closed: it takes no more records")

var errBackpressure = kafkaproto.ErrNotEnoughReplicas.WithMessage("the object store is behind, or the local disk is nearly full; nothing was written, try again")

// errAdminBackpressure is errBackpressure for clients that change topics: of the errors that they retry, this one says
// best that nothing is wrong with the request.
var errAdminBackpressure = kafkaproto.ErrRequestTimedOut.WithMessage("%s", errBackpressure.Message)

// Errors that only requests for administration are answered with.
var (
	errLogDirNotFound           = &kafkaproto.Error{Code: 57, Name: "LOG_DIR_NOT_FOUND", Message: "there is no such log directory: the only one is " + logDir}
	errElectionNotNeeded        = &kafkaproto.Error{Code: 84, Name: "ELECTION_NOT_NEEDED", Message: "the preferred leader leads the partition already"}
	errNoReassignmentInProgress = &kafkaproto.Error{Code: 85, Name: "NO_REASSIGNMENT_IN_PROGRESS", Message: "no partition reassignment is in progress"}
	errInvalidUpdateVersion     = &kafkaproto.Error{Code: 95, Name: "INVALID_UPDATE_VERSION", Message: "the level of the feature cannot be changed"}
	errBrokerIDNotRegistered    = &kafkaproto.Error{Code: 102, Name: "BROKER_ID_NOT_REGISTERED", Message: "no broker with this id is registered"}
)

// Errors of DescribeCluster (KIP-919).
var (
	errMismatchedEndpointType  = &kafkaproto.Error{Code: 114, Name: "MISMATCHED_ENDPOINT_TYPE", Message: "this is an endpoint for brokers, not for controllers"}
	errUnsupportedEndpointType = &kafkaproto.Error{Code: 115, Name: "UNSUPPORTED_ENDPOINT_TYPE", Message: "the endpoint type must be 1, brokers"}
)

// storeError translates an error of the store for clients. Nil stays nil. A Kafka error is passed through, and an error
// that the table does not know is UNKNOWN_SERVER_ERROR with its text. For some sentinels the text of the error says
// more than Kafka's description; those keep it.
func storeError(err error) *kafkaproto.Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*kafkaproto.Error](err); ok {
		return e
	}
	for _, m := range storeErrors {
		if !errors.Is(err, m.err) {
			continue
		}
		if m.err == streamstore.ErrInvalidName || m.err == streamstore.ErrInvalidSettings {
			return m.kafka.WithMessage("%v", err)
		}
		return m.kafka
	}
	return kafkaproto.ErrUnknownServerError.WithMessage("%v", err)
}

// adminError is storeError for requests that change topics, streams and their configs.
func adminError(err error) *kafkaproto.Error {
	e := storeError(err)
	if e == errBackpressure {
		return errAdminBackpressure
	}
	return e
}

// errorFields returns e as responses carry it: the code, and the message or null. Nil is success.
func errorFields(e *kafkaproto.Error) (code int16, message *string) {
	if e == nil {
		return 0, nil
	}
	return e.Code, kmsg.StringPtr(e.Message)
}
