package kafkaproto

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"unsafe"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// eachServed runs fn for every version of every key in the table.
func eachServed(fn func(key, version int16)) {
	for _, r := range served {
		for v := r.min; v <= r.max; v++ {
			fn(r.key, v)
		}
	}
}

// decodeAll is what a connection does with a frame, without the waiting.
func decodeAll(frame []byte) (kmsg.Request, error) {
	w := wire{b: frame}
	key, version := w.int16(), w.int16()
	body := newRequest(key, version)
	h, err := parseHeader(frame, body.IsFlexible())
	if err != nil {
		return nil, err
	}
	if key == KeyProduce {
		if _, err := walkProduce(version, h.body); err != nil {
			return nil, err
		}
	}
	return body, parseBody(body, h.body)
}

func headerOf(key, version int16) []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(key))
	b = binary.BigEndian.AppendUint16(b, uint16(version))
	b = append(b, 0, 0, 0, 1, 0xff, 0xff) // correlation id, null client id
	if newRequest(key, version).IsFlexible() {
		b = append(b, 0)
	}
	return b
}

// hostileBodies are tails that, wherever in a request they start, make some length
// enormous: array and string lengths of 2^31-1, compact lengths of 2^32-1, tag counts.
func hostileBodies() map[string][]byte {
	huge := []byte{0x7f, 0xff, 0xff, 0xff}
	compact := []byte{0xff, 0xff, 0xff, 0xff, 0x0f}
	return map[string][]byte{
		"int32 lengths":     bytes.Repeat(huge, 5),
		"negative lengths":  bytes.Repeat([]byte{0xff, 0xff, 0xff, 0xfe}, 5),
		"minimum lengths":   bytes.Repeat([]byte{0x80, 0, 0, 0}, 5),
		"compact lengths":   bytes.Repeat(compact, 4),
		"compact 2^31":      bytes.Repeat([]byte{0x80, 0x80, 0x80, 0x80, 0x08}, 4),
		"endless varints":   bytes.Repeat([]byte{0x80}, 20),
		"zeros":             make([]byte, 20),
		"ones":              bytes.Repeat([]byte{1}, 20),
		"nothing":           nil,
		"int16 lengths":     bytes.Repeat([]byte{0x7f, 0xff}, 10),
		"zeros, then huge":  append(make([]byte, 12), bytes.Repeat(huge, 2)...),
		"zeros, then tags":  append(make([]byte, 12), bytes.Repeat(compact, 2)...),
		"one, then compact": append([]byte{1, 2, 2, 2}, bytes.Repeat(compact, 3)...),
	}
}

// Twenty bytes must not make a decoder allocate more than they could honestly need.
func TestHostileLengthsCostNothing(t *testing.T) {
	for name, tail := range hostileBodies() {
		for prefix := range 16 {
			eachServed(func(key, version int16) {
				frame := slices.Concat(headerOf(key, version), make([]byte, prefix), tail)
				n := allocated(func() { _, _ = decodeAll(frame) })
				// The request struct, an error, and at most decodeFactor for the rest.
				if limit := uint64(len(frame)*decodeFactor + 4096); n > limit {
					t.Errorf("%s v%d, %d zeros and %s: %d bytes allocated for %d", kmsg.NameForKey(key), version, prefix, name, n, len(frame))
				}
			})
		}
	}
}

// tagged makes kmsg put one unknown tag into every element that can have one, the
// most expensive thing a few bytes can ask for.
func TestDecodeFactorCoversTheWorstCase(t *testing.T) {
	tag := func(tags *kmsg.Tags) { tags.Set(100, nil) }
	for name, req := range map[string]kmsg.Request{
		"metadata v9 topics with a tag each": func() kmsg.Request {
			r := kmsg.NewPtrMetadataRequest()
			r.SetVersion(9)
			r.Topics = make([]kmsg.MetadataRequestTopic, 10000)
			for i := range r.Topics {
				r.Topics[i].Topic = kmsg.StringPtr("")
				tag(&r.Topics[i].UnknownTags)
			}
			return r
		}(),
		"metadata v0 topics": func() kmsg.Request {
			r := kmsg.NewPtrMetadataRequest()
			r.Topics = make([]kmsg.MetadataRequestTopic, 10000)
			for i := range r.Topics {
				r.Topics[i].Topic = kmsg.StringPtr("")
			}
			return r
		}(),
		"fetch topics with a tag each": func() kmsg.Request {
			r := kmsg.NewPtrFetchRequest()
			r.SetVersion(12)
			r.Topics = make([]kmsg.FetchRequestTopic, 10000)
			for i := range r.Topics {
				tag(&r.Topics[i].UnknownTags)
			}
			return r
		}(),
		"many configs": func() kmsg.Request {
			r := kmsg.NewPtrDescribeConfigsRequest()
			r.SetVersion(4)
			r.Resources = make([]kmsg.DescribeConfigsRequestResource, 10000)
			for i := range r.Resources {
				r.Resources[i].ConfigNames = []string{"", ""}
				tag(&r.Resources[i].UnknownTags)
			}
			return r
		}(),
		"many tags": func() kmsg.Request {
			r := kmsg.NewPtrApiVersionsRequest()
			r.SetVersion(3)
			for i := range uint32(10000) {
				r.UnknownTags.Set(i+10, nil)
			}
			return r
		}(),
		"create topics": func() kmsg.Request {
			r := kmsg.NewPtrCreateTopicsRequest()
			r.SetVersion(7)
			r.Topics = make([]kmsg.CreateTopicsRequestTopic, 3000)
			for i := range r.Topics {
				r.Topics[i].Configs = make([]kmsg.CreateTopicsRequestTopicConfig, 3)
				r.Topics[i].ReplicaAssignment = make([]kmsg.CreateTopicsRequestTopicReplicaAssignment, 3)
				for j := range 3 {
					tag(&r.Topics[i].Configs[j].UnknownTags)
					tag(&r.Topics[i].ReplicaAssignment[j].UnknownTags)
				}
			}
			return r
		}(),
	} {
		t.Run(name, func(t *testing.T) {
			body := req.AppendTo(nil)
			fresh := newRequest(req.Key(), req.GetVersion())
			n := int64(allocated(func() {
				if err := parseBody(fresh, body); err != nil {
					t.Fatal(err)
				}
			}))
			cost := int64(len(body)) * decodeFactor
			if n > cost {
				t.Errorf("%d bytes took %d to decode, %.0f times as many; charged %d", len(body), n, float64(n)/float64(len(body)), cost)
			}
			// What stays charged must be about what is held.
			kept := measure(fresh).bytes
			if kept < n/4 || kept > cost {
				t.Errorf("decoding allocated %d, %d stay charged", n, kept)
			}
		})
	}
}

func produceRequest(version int16, topics, partitions int, records []byte) *kmsg.ProduceRequest {
	r := kmsg.NewPtrProduceRequest()
	r.SetVersion(version)
	r.Acks = -1
	for i := range topics {
		t := kmsg.NewProduceRequestTopic()
		t.Topic = fmt.Sprintf("topic-%d", i)
		t.TopicID[0] = byte(i)
		for j := range partitions {
			p := kmsg.NewProduceRequestTopicPartition()
			p.Partition, p.Records = int32(j), records
			t.Partitions = append(t.Partitions, p)
		}
		r.Topics = append(r.Topics, t)
	}
	return r
}

func TestProduceWalkAgreesWithKmsg(t *testing.T) {
	for v := int16(3); v <= 13; v++ {
		r := produceRequest(v, 3, 4, []byte("records"))
		r.TransactionID = kmsg.StringPtr("txn")
		if v >= 9 {
			r.UnknownTags.Set(50, []byte("x"))
			r.Topics[1].UnknownTags.Set(51, nil)
			r.Topics[2].Partitions[3].UnknownTags.Set(10000, []byte("expected offset"))
			r.Topics[2].Partitions[3].UnknownTags.Set(10001, nil)
		}
		shape, err := walkProduce(v, r.AppendTo(nil))
		if err != nil {
			t.Fatalf("v%d: %v", v, err)
		}
		if shape.topics != 3 || shape.partitions != 12 {
			t.Errorf("v%d: %+v", v, shape)
		}
		if v >= 9 && (shape.tagSections != 3 || shape.tags != 4) {
			t.Errorf("v%d: %+v", v, shape)
		}
	}
}

func TestProduceWalkBoundsTopicsAndPartitions(t *testing.T) {
	for _, tc := range []struct {
		topics, partitions int
		ok                 bool
	}{{1, 1000, true}, {1, maxProduceEntries, false}, {300, 300, false}, {maxProduceEntries/2 - 1, 1, true}, {maxProduceEntries + 1, 0, false}} {
		for _, v := range []int16{3, 9, 13} {
			body := produceRequest(v, tc.topics, tc.partitions, nil).AppendTo(nil)
			shape, err := walkProduce(v, body)
			if (err == nil) != tc.ok {
				t.Errorf("v%d %+v: %v", v, tc, err)
			}
			if err == nil {
				n := allocated(func() {
					if err := parseBody(newRequest(KeyProduce, v), body); err != nil {
						t.Fatal(err)
					}
				})
				// Size classes round up, and without optimization, as under the race
				// detector, kmsg allocates an array twice, once as garbage.
				if limit := uint64(shape.decodedBytes())*9/4 + 4096; n > limit {
					t.Errorf("v%d %+v: %d allocated, %d charged", v, tc, n, shape.decodedBytes())
				}
			}
		}
	}
	// A frame of zeros: 100 MiB of topics with empty names, as far as kmsg can tell.
	zeros := make([]byte, 8<<20)
	binary.BigEndian.PutUint32(zeros[8:], uint32(len(zeros)/2-100))
	n := allocated(func() {
		if _, err := walkProduce(3, zeros); err == nil {
			t.Error("accepted")
		}
	})
	if n > 4096 {
		t.Errorf("%d bytes allocated", n)
	}
}

// Whatever kmsg accepts the walk must accept too, or honest requests would be
// refused; what the walk refuses kmsg never sees.
func TestProduceWalkAndTruncation(t *testing.T) {
	for v := int16(3); v <= 13; v++ {
		body := produceRequest(v, 2, 2, []byte("records")).AppendTo(nil)
		for cut := range body {
			_, walked := walkProduce(v, body[:cut])
			decoded := parseBody(newRequest(KeyProduce, v), body[:cut])
			if (walked == nil) != (decoded == nil) {
				t.Errorf("v%d cut at %d: walk %v, kmsg %v", v, cut, walked, decoded)
			}
		}
	}
}

// The Records fields are the frame's own bytes; nothing else may use them again.
func TestRecordsAreSlicesOfTheFrame(t *testing.T) {
	batch := build(t, BatchOptions{}, someRecords()...)
	for v := int16(3); v <= 13; v++ {
		frame := frameOf(produceRequest(v, 1, 2, batch), v, 1)[4:]
		req, err := decodeAll(frame)
		if err != nil {
			t.Fatal(err)
		}
		topic := req.(*kmsg.ProduceRequest).Topics[0]
		for _, p := range topic.Partitions {
			if !bytes.Equal(p.Records, batch) {
				t.Fatalf("v%d: records differ", v)
			}
			at := uintptr(unsafe.Pointer(&p.Records[0])) - uintptr(unsafe.Pointer(&frame[0]))
			if at >= uintptr(len(frame)) {
				t.Errorf("v%d: records were copied", v)
			}
			if cap(p.Records) != len(p.Records) {
				t.Errorf("v%d: an append would overwrite the rest of the frame", v)
			}
		}
		// Strings are copies: a topic name that is kept does not keep the frame.
		if name := topic.Topic; v < 13 {
			clear(frame)
			if name != "topic-0" {
				t.Errorf("v%d: the name %q is part of the frame", v, name)
			}
		}
	}
}

func TestHeaders(t *testing.T) {
	frame := frameOf(kmsg.NewPtrMetadataRequest(), 9, 77)[4:]
	h, err := parseHeader(frame, true)
	if err != nil || h.key != KeyMetadata || h.version != 9 || h.correlationID != 77 || h.clientID != "tester" {
		t.Fatal(h, err)
	}
	base := []byte{0, 3, 0, 9, 0, 0, 0, 1}
	for name, tail := range map[string][]byte{
		"no client id":             {},
		"client id beyond the end": {0x7f, 0xff, 'a'},
		"no tag count":             {0xff, 0xff},
		"huge tag count":           {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f},
		"tag beyond the end":       {0xff, 0xff, 1, 5, 100},
		"huge tag":                 {0xff, 0xff, 1, 5, 0xff, 0xff, 0xff, 0xff, 0x0f},
	} {
		if _, err := parseHeader(slices.Concat(base, tail), true); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	// Tags in a header are skipped.
	h, err = parseHeader(slices.Concat(base, []byte{0, 1, 'c', 2, 5, 3, 1, 2, 3, 9, 0, 0xaa}), true)
	if err != nil || h.clientID != "c" || !bytes.Equal(h.body, []byte{0xaa}) {
		t.Fatal(h, err)
	}
	if h, err = parseHeader(slices.Concat(base, []byte{0x80, 0}), false); err != nil || h.clientID != "" {
		t.Error("any negative length is a null client id", h, err)
	}
}

func TestMalformedBodiesCloseWithOneLine(t *testing.T) {
	for name, frame := range map[string][]byte{
		"array length 2^31-1":        append(headerOf(KeyMetadata, 1), 0x7f, 0xff, 0xff, 0xff),
		"compact array length":       append(headerOf(KeyMetadata, 9), 0xff, 0xff, 0xff, 0xff, 0x0f),
		"produce with a huge array":  append(headerOf(KeyProduce, 3), 0xff, 0xff, 0, 1, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff),
		"produce with a huge string": append(headerOf(KeyProduce, 3), 0x7f, 0xff, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0),
		"header cut":                 headerOf(KeyFetch, 12)[:10],
		"empty body":                 headerOf(KeyCreateTopics, 5),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := start(t, Options{}, answerAll)
				c := h.dial()
				b := binary.BigEndian.AppendUint32(nil, uint32(len(frame)))
				c.send(append(b, frame...))
				c.expectClosed()
				synctest.Wait()
				h.oneLine("reason=malformed")
				if h.closedFor(closedMalformed) != 1 {
					t.Error("not counted")
				}
			})
		})
	}
}

func TestWirePrimitives(t *testing.T) {
	for name, read := range map[string]func(w *wire){
		"int16":           func(w *wire) { w.int16() },
		"int32":           func(w *wire) { w.int32() },
		"uvarint":         func(w *wire) { w.uvarint() },
		"span":            func(w *wire) { w.span(1) },
		"negative skip":   func(w *wire) { w.skip(math.MinInt32) },
		"string":          func(w *wire) { w.skipString(false) },
		"compact string":  func(w *wire) { w.skipString(true) },
		"bytes":           func(w *wire) { w.skipBytes(false) },
		"compact bytes":   func(w *wire) { w.skipBytes(true) },
		"tags":            func(w *wire) { w.skipTags() },
		"array":           func(w *wire) { w.arrayLen(false, 1) },
		"compact array":   func(w *wire) { w.arrayLen(true, 1) },
		"nullable string": func(w *wire) { w.nullableString() },
	} {
		w := wire{}
		if read(&w); !w.bad {
			t.Errorf("%s read from nothing", name)
		}
	}
	for _, tc := range []struct {
		in []byte
		n  int
	}{
		{[]byte{0xff, 0xff, 0xff, 0xff, 0x0f}, 5},
		{[]byte{0xff, 0xff, 0xff, 0xff, 0x10}, -1},
		{[]byte{0x80, 0x80, 0x80, 0x80, 0x80, 1}, -1},
		{[]byte{0x80}, 0},
		{nil, 0},
	} {
		if _, n := uvarint32(tc.in); n != tc.n {
			t.Errorf("uvarint32(%x): %d, want %d", tc.in, n, tc.n)
		}
	}
}

func TestQuoteShort(t *testing.T) {
	if got := quoteShort("a\n\x1b[31m"); got != `"a\n\x1b[31m"` {
		t.Error(got)
	}
	if got := quoteShort(strings.Repeat("x", 30000)); len(got) > 70 {
		t.Error(len(got))
	}
}
