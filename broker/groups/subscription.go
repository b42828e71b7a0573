package groups

import (
	"encoding/binary"
	"errors"
	"slices"
)

// consumerProtocol is the protocol type of groups of consumers. Only of these the broker knows what the metadata of
// members means.
const consumerProtocol = "consumer"

var (
	errBadSubscription = errors.New("groups: metadata is not a subscription of the consumer protocol")
	errBadAssignment   = errors.New("groups: data is not an assignment of the consumer protocol")
)

// subscribedTopics calls fn with each topic of a subscription:
//
//	int16 version, int32 count, for each topic an int16 length and the name, then fields of newer versions
//
// All versions begin with those of version 0 (Kafka: ConsumerProtocolSubscription.json), so what follows is not looked
// at. Topics before the place where the bytes stop making sense have been reported when the error is returned.
func subscribedTopics(b []byte, fn func(topic []byte)) error {
	d := wireReader{b: b}
	d.topics(fn)
	if d.bad {
		return errBadSubscription
	}
	return nil
}

// clientSubscription is what a consumer says about itself when it joins (Kafka: ConsumerProtocolSubscription.json).
type clientSubscription struct {
	topics []string
	// owned are partitions that it holds and has not revoked, from version 1 on; rack is from version 3 on.
	owned []namedPartitions
	rack  string
}

// namedPartitions are partitions of a topic named by a client.
type namedPartitions struct {
	topic      string
	partitions []int32
}

// parseSubscription reads a subscription:
//
//	version  int16
//	topics   int32 count, then for each an int16 length and the name
//	data     int32 length, -1 for null, and bytes that only assignors of clients know
//	owned    from version 1: int32 count, then for each a topic and its partitions (int32 count, int32 each)
//	         from version 2: int32 generation
//	rack     from version 3: int16 length, -1 for null, and the name
//
// Fields of newer versions follow. The error is errBadSubscription.
func parseSubscription(b []byte) (clientSubscription, error) {
	var s clientSubscription
	d := wireReader{b: b}
	version := d.topics(func(topic []byte) { s.topics = append(s.topics, string(topic)) })
	if version >= 1 {
		d.nullable(int(d.int32()))
		s.owned = d.namedPartitions()
	}
	if version >= 2 {
		d.int32()
	}
	if version >= 3 {
		s.rack = string(d.nullable(int(d.int16())))
	}
	if d.bad {
		return clientSubscription{}, errBadSubscription
	}
	return s, nil
}

// parseAssignment reads an assignment that a leader has made (Kafka: ConsumerProtocolAssignment.json): int16 version,
// partitions as in subscriptions, int32 length and data of the assignor. No bytes at all are an empty one. The error is
// errBadAssignment.
func parseAssignment(b []byte) ([]namedPartitions, error) {
	if len(b) == 0 {
		return nil, nil
	}
	d := wireReader{b: b}
	d.bad = d.int16() < 0
	topics := d.namedPartitions()
	if d.bad {
		return nil, errBadAssignment
	}
	return topics, nil
}

// encodeFor encodes an assignment for a member that uses SyncGroup, in the version of its subscription. Topics that do not
// exist any more are left out.
func (md *subscribedMetadata) encodeFor(m *consumerMember, a assignment) []byte {
	version := []byte{0, 0}
	if metadata := m.classic.protocols[0].Metadata; len(metadata) >= 2 {
		version = metadata[:2]
	}
	count := 0
	var topics []byte
	a.byTopic(func(topic [16]byte, partitions []int32) {
		name, ok := md.names[topic]
		if !ok {
			return
		}
		count++
		topics = append(binary.BigEndian.AppendUint16(topics, uint16(len(name))), name...)
		topics = binary.BigEndian.AppendUint32(topics, uint32(len(partitions)))
		for _, p := range partitions {
			topics = binary.BigEndian.AppendUint32(topics, uint32(p))
		}
	})
	b := binary.BigEndian.AppendUint32(slices.Clone(version), uint32(count))
	return append(append(b, topics...), 0xff, 0xff, 0xff, 0xff) // no data of an assignor
}

// wireReader takes values off the front of bytes from a client. A value that is not there sets bad and reads as zero.
type wireReader struct {
	b   []byte
	bad bool
}

func (d *wireReader) take(n int) []byte {
	if n < 0 || n > len(d.b) {
		d.bad, d.b = true, nil
		return nil
	}
	b := d.b[:n]
	d.b = d.b[n:]
	return b
}

func (d *wireReader) int16() int16 {
	if b := d.take(2); b != nil {
		return int16(binary.BigEndian.Uint16(b))
	}
	return 0
}

func (d *wireReader) int32() int32 {
	if b := d.take(4); b != nil {
		return int32(binary.BigEndian.Uint32(b))
	}
	return 0
}

// nullable reads n bytes, none if n is -1.
func (d *wireReader) nullable(n int) []byte {
	if n == -1 {
		return nil
	}
	return d.take(n)
}

// topics reads the version and topics of a subscription.
func (d *wireReader) topics(fn func(topic []byte)) (version int16) {
	version = d.int16()
	count := d.int32()
	d.bad = d.bad || version < 0 || count < 0
	for range count {
		topic := d.take(int(d.int16()))
		if d.bad {
			break
		}
		fn(topic)
	}
	return version
}

func (d *wireReader) namedPartitions() []namedPartitions {
	var all []namedPartitions
	for range d.int32() {
		t := namedPartitions{topic: string(d.take(int(d.int16())))}
		for range d.int32() {
			if t.partitions = append(t.partitions, d.int32()); d.bad {
				return nil
			}
		}
		if d.bad {
			return nil
		}
		all = append(all, t)
	}
	return all
}
