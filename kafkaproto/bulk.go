package kafkaproto

import "github.com/twmb/franz-go/pkg/kmsg"

// Requests other than Produce are small, but for those that carry text or bytes of the
// client's own: the metadata of committed offsets and of group members. Kafka accepts
// them up to socket.request.max.bytes and refuses what is too long with an error code, so
// the frame limit for control requests does not hold for them. What decoding them costs
// is counted exactly beforehand instead.
var bulkWalks = map[int16]func(w *wire, version int16) (elements int){
	KeyOffsetCommit: walkOffsetCommit,
	KeyJoinGroup:    walkJoinGroup,
}

// walkBulk counts the array elements of a large request without allocating.
func walkBulk(key, version int16, body []byte) (elements int, err error) {
	w := wire{b: body}
	elements = bulkWalks[key](&w, version)
	switch {
	case elements > maxElements:
		return 0, malformed(malformedShape, "%s request of more than %d elements", kmsg.NameForKey(key), maxElements)
	case w.bad:
		return 0, malformed(malformedBody, "the %s request does not fit its %d bytes", kmsg.NameForKey(key), len(body))
	}
	return elements, nil
}

// skipTagsIf skips the tags that end each structure of flexible versions.
func (w *wire) skipTagsIf(flexible bool) int {
	if !flexible {
		return 0
	}
	return w.skipTags()
}

func walkOffsetCommit(w *wire, version int16) (elements int) {
	flexible := version >= 8
	w.skipString(flexible) // group
	w.skip(4)              // generation
	w.skipString(flexible) // member
	if version >= 7 {
		w.skipString(flexible) // instance
	}
	if version <= 4 {
		w.skip(8) // retention
	}
	topics := w.arrayLen(flexible, 2)
	elements = topics
	for t := 0; t < topics && !w.bad && elements <= maxElements; t++ {
		if version >= 10 {
			w.skip(16)
		} else {
			w.skipString(flexible)
		}
		n := w.arrayLen(flexible, 12)
		elements += n
		for p := 0; p < n && !w.bad && elements <= maxElements; p++ {
			w.skip(4 + 8)
			if version >= 6 {
				w.skip(4) // leader epoch
			}
			w.skipString(flexible) // metadata
			elements += w.skipTagsIf(flexible)
		}
		elements += w.skipTagsIf(flexible)
	}
	return elements + w.skipTagsIf(flexible)
}

func walkJoinGroup(w *wire, version int16) (elements int) {
	flexible := version >= 6
	w.skipString(flexible) // group
	w.skip(4)              // session timeout
	if version >= 1 {
		w.skip(4) // rebalance timeout
	}
	w.skipString(flexible) // member
	if version >= 5 {
		w.skipString(flexible) // instance
	}
	w.skipString(flexible) // protocol type
	n := w.arrayLen(flexible, 2)
	elements = n
	for p := 0; p < n && !w.bad && elements <= maxElements; p++ {
		w.skipString(flexible)
		w.skipBytes(flexible)
		elements += w.skipTagsIf(flexible)
	}
	if version >= 8 {
		w.skipString(flexible) // reason
	}
	return elements + w.skipTagsIf(flexible)
}
