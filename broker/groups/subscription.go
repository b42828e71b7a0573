package groups

import (
	"encoding/binary"
	"errors"
)

// consumerProtocol is the protocol type of groups of consumers. Only of these the broker knows what the metadata of
// members means.
const consumerProtocol = "consumer"

var errBadSubscription = errors.New("groups: metadata is not a subscription of the consumer protocol")

// subscribedTopics calls fn with each topic of a subscription:
//
//	int16 version, int32 count, for each topic an int16 length and the name, then fields of newer versions
//
// All versions begin with those of version 0 (Kafka: ConsumerProtocolSubscription.json), so what follows is not looked
// at. Topics before the place where the bytes stop making sense have been reported when the error is returned.
func subscribedTopics(b []byte, fn func(topic []byte)) error {
	if len(b) < 6 || int16(binary.BigEndian.Uint16(b)) < 0 {
		return errBadSubscription
	}
	count := int32(binary.BigEndian.Uint32(b[2:]))
	b = b[6:]
	if count < 0 {
		return errBadSubscription
	}
	for range count {
		if len(b) < 2 {
			return errBadSubscription
		}
		size := int(int16(binary.BigEndian.Uint16(b)))
		if b = b[2:]; size < 0 || size > len(b) {
			return errBadSubscription
		}
		fn(b[:size])
		b = b[size:]
	}
	return nil
}
