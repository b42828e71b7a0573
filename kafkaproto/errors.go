package kafkaproto

import (
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
)

// Error is an error of the Kafka protocol: what a response carries in an
// ErrorCode field. The Err variables are its values; they are compared by code,
// so errors.Is(err, ErrInvalidRecord) also holds for one with a message of its
// own.
type Error struct {
	// Code is the number on the wire. Zero, "no error", is never an *Error.
	Code int16
	// Name is the name on the wire, such as UNKNOWN_TOPIC_OR_PARTITION.
	Name string
	// Retriable tells whether clients send the request again on their own.
	Retriable bool
	// Message says what went wrong for a person. Versions of responses that
	// have an ErrorMessage field carry it.
	Message string
}

// Error returns the name and the message.
func (e *Error) Error() string { return e.Name + ": " + e.Message }

// Is reports whether target is a protocol error with the same code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t != nil && t.Code == e.Code
}

// WithMessage returns a copy of e that says what happened this time.
func (e *Error) WithMessage(format string, args ...any) *Error {
	c := *e
	c.Message = fmt.Sprintf(format, args...)
	return &c
}

// AsError returns the protocol error found in err's chain. An error without one
// is UNKNOWN_SERVER_ERROR, with err's text as the message; nil stays nil.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return ErrUnknownServerError.WithMessage("%s", err)
}

// CodeOf returns the code to put on the wire for err: zero for nil,
// UNKNOWN_SERVER_ERROR for an error that is none of the protocol's.
func CodeOf(err error) int16 {
	if e := AsError(err); e != nil {
		return e.Code
	}
	return 0
}

func fromKerr(k *kerr.Error) *Error {
	return &Error{Code: k.Code, Name: k.Message, Retriable: k.Retriable, Message: k.Description}
}

// The protocol's errors that a broker sends, from Kafka's class Errors. Texts and
// retriable flags are those of franz-go's kerr.
var (
	ErrUnknownServerError                 = fromKerr(kerr.UnknownServerError)                 // -1
	ErrOffsetOutOfRange                   = fromKerr(kerr.OffsetOutOfRange)                   // 1
	ErrCorruptMessage                     = fromKerr(kerr.CorruptMessage)                     // 2
	ErrUnknownTopicOrPartition            = fromKerr(kerr.UnknownTopicOrPartition)            // 3
	ErrLeaderNotAvailable                 = fromKerr(kerr.LeaderNotAvailable)                 // 5
	ErrNotLeaderOrFollower                = fromKerr(kerr.NotLeaderForPartition)              // 6
	ErrRequestTimedOut                    = fromKerr(kerr.RequestTimedOut)                    // 7
	ErrMessageTooLarge                    = fromKerr(kerr.MessageTooLarge)                    // 10
	ErrOffsetMetadataTooLarge             = fromKerr(kerr.OffsetMetadataTooLarge)             // 12
	ErrCoordinatorLoadInProgress          = fromKerr(kerr.CoordinatorLoadInProgress)          // 14
	ErrCoordinatorNotAvailable            = fromKerr(kerr.CoordinatorNotAvailable)            // 15
	ErrNotCoordinator                     = fromKerr(kerr.NotCoordinator)                     // 16
	ErrInvalidTopic                       = fromKerr(kerr.InvalidTopicException)              // 17
	ErrRecordListTooLarge                 = fromKerr(kerr.RecordListTooLarge)                 // 18
	ErrNotEnoughReplicas                  = fromKerr(kerr.NotEnoughReplicas)                  // 19
	ErrNotEnoughReplicasAfterAppend       = fromKerr(kerr.NotEnoughReplicasAfterAppend)       // 20
	ErrInvalidRequiredAcks                = fromKerr(kerr.InvalidRequiredAcks)                // 21
	ErrIllegalGeneration                  = fromKerr(kerr.IllegalGeneration)                  // 22
	ErrInconsistentGroupProtocol          = fromKerr(kerr.InconsistentGroupProtocol)          // 23
	ErrInvalidGroupID                     = fromKerr(kerr.InvalidGroupID)                     // 24
	ErrUnknownMemberID                    = fromKerr(kerr.UnknownMemberID)                    // 25
	ErrInvalidSessionTimeout              = fromKerr(kerr.InvalidSessionTimeout)              // 26
	ErrRebalanceInProgress                = fromKerr(kerr.RebalanceInProgress)                // 27
	ErrTopicAuthorizationFailed           = fromKerr(kerr.TopicAuthorizationFailed)           // 29
	ErrGroupAuthorizationFailed           = fromKerr(kerr.GroupAuthorizationFailed)           // 30
	ErrClusterAuthorizationFailed         = fromKerr(kerr.ClusterAuthorizationFailed)         // 31
	ErrInvalidTimestamp                   = fromKerr(kerr.InvalidTimestamp)                   // 32
	ErrUnsupportedSaslMechanism           = fromKerr(kerr.UnsupportedSaslMechanism)           // 33
	ErrIllegalSaslState                   = fromKerr(kerr.IllegalSaslState)                   // 34
	ErrUnsupportedVersion                 = fromKerr(kerr.UnsupportedVersion)                 // 35
	ErrTopicAlreadyExists                 = fromKerr(kerr.TopicAlreadyExists)                 // 36
	ErrInvalidPartitions                  = fromKerr(kerr.InvalidPartitions)                  // 37
	ErrInvalidReplicationFactor           = fromKerr(kerr.InvalidReplicationFactor)           // 38
	ErrInvalidReplicaAssignment           = fromKerr(kerr.InvalidReplicaAssignment)           // 39
	ErrInvalidConfig                      = fromKerr(kerr.InvalidConfig)                      // 40
	ErrNotController                      = fromKerr(kerr.NotController)                      // 41
	ErrInvalidRequest                     = fromKerr(kerr.InvalidRequest)                     // 42
	ErrPolicyViolation                    = fromKerr(kerr.PolicyViolation)                    // 44
	ErrOutOfOrderSequenceNumber           = fromKerr(kerr.OutOfOrderSequenceNumber)           // 45
	ErrDuplicateSequenceNumber            = fromKerr(kerr.DuplicateSequenceNumber)            // 46
	ErrInvalidProducerEpoch               = fromKerr(kerr.InvalidProducerEpoch)               // 47
	ErrInvalidTxnState                    = fromKerr(kerr.InvalidTxnState)                    // 48
	ErrInvalidProducerIDMapping           = fromKerr(kerr.InvalidProducerIDMapping)           // 49
	ErrInvalidTransactionTimeout          = fromKerr(kerr.InvalidTransactionTimeout)          // 50
	ErrConcurrentTransactions             = fromKerr(kerr.ConcurrentTransactions)             // 51
	ErrTransactionalIDAuthorizationFailed = fromKerr(kerr.TransactionalIDAuthorizationFailed) // 53
	ErrSecurityDisabled                   = fromKerr(kerr.SecurityDisabled)                   // 54
	ErrOperationNotAttempted              = fromKerr(kerr.OperationNotAttempted)              // 55
	ErrKafkaStorageError                  = fromKerr(kerr.KafkaStorageError)                  // 56
	ErrSaslAuthenticationFailed           = fromKerr(kerr.SaslAuthenticationFailed)           // 58
	ErrUnknownProducerID                  = fromKerr(kerr.UnknownProducerID)                  // 59
	ErrNonEmptyGroup                      = fromKerr(kerr.NonEmptyGroup)                      // 68
	ErrGroupIDNotFound                    = fromKerr(kerr.GroupIDNotFound)                    // 69
	ErrFetchSessionIDNotFound             = fromKerr(kerr.FetchSessionIDNotFound)             // 70
	ErrInvalidFetchSessionEpoch           = fromKerr(kerr.InvalidFetchSessionEpoch)           // 71
	ErrListenerNotFound                   = fromKerr(kerr.ListenerNotFound)                   // 72
	ErrTopicDeletionDisabled              = fromKerr(kerr.TopicDeletionDisabled)              // 73
	ErrFencedLeaderEpoch                  = fromKerr(kerr.FencedLeaderEpoch)                  // 74
	ErrUnknownLeaderEpoch                 = fromKerr(kerr.UnknownLeaderEpoch)                 // 75
	ErrUnsupportedCompressionType         = fromKerr(kerr.UnsupportedCompressionType)         // 76
	ErrOffsetNotAvailable                 = fromKerr(kerr.OffsetNotAvailable)                 // 78
	ErrMemberIDRequired                   = fromKerr(kerr.MemberIDRequired)                   // 79
	ErrGroupMaxSizeReached                = fromKerr(kerr.GroupMaxSizeReached)                // 81
	ErrFencedInstanceID                   = fromKerr(kerr.FencedInstanceID)                   // 82
	ErrGroupSubscribedToTopic             = fromKerr(kerr.GroupSubscribedToTopic)             // 86
	ErrInvalidRecord                      = fromKerr(kerr.InvalidRecord)                      // 87
	ErrUnstableOffsetCommit               = fromKerr(kerr.UnstableOffsetCommit)               // 88
	ErrThrottlingQuotaExceeded            = fromKerr(kerr.ThrottlingQuotaExceeded)            // 89
	ErrProducerFenced                     = fromKerr(kerr.ProducerFenced)                     // 90
	ErrResourceNotFound                   = fromKerr(kerr.ResourceNotFound)                   // 91
	ErrUnknownTopicID                     = fromKerr(kerr.UnknownTopicID)                     // 100
	ErrInconsistentTopicID                = fromKerr(kerr.InconsistentTopicID)                // 103
	ErrTransactionalIDNotFound            = fromKerr(kerr.TransactionalIDNotFound)            // 105
	ErrFetchSessionTopicIDError           = fromKerr(kerr.FetchSessionTopicIDError)           // 106
	ErrFencedMemberEpoch                  = fromKerr(kerr.FencedMemberEpoch)                  // 110
	ErrUnreleasedInstanceID               = fromKerr(kerr.UnreleasedInstanceID)               // 111
	ErrUnsupportedAssignor                = fromKerr(kerr.UnsupportedAssignor)                // 112
	ErrStaleMemberEpoch                   = fromKerr(kerr.StaleMemberEpoch)                   // 113
	ErrTransactionAbortable               = fromKerr(kerr.TransactionAbortable)               // 120
	ErrInvalidRegularExpression           = fromKerr(kerr.InvalidRegularExpression)           // 128
	ErrRebootstrapRequired                = fromKerr(kerr.RebootstrapRequired)                // 129
)

func init() {
	// kerr keeps the name from before KIP-392 widened the meaning.
	ErrNotLeaderOrFollower.Name = "NOT_LEADER_OR_FOLLOWER"
}
