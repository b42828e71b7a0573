package kafkaproto

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func bulkOffsetCommit(metadata string) *kmsg.OffsetCommitRequest {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group, req.MemberID = "group", "member"
	for t := range 3 {
		topic := kmsg.NewOffsetCommitRequestTopic()
		topic.Topic = fmt.Sprint("topic", t)
		for p := range int32(4) {
			partition := kmsg.NewOffsetCommitRequestTopicPartition()
			partition.Partition, partition.Metadata = p, &metadata
			topic.Partitions = append(topic.Partitions, partition)
		}
		req.Topics = append(req.Topics, topic)
	}
	return req
}

func bulkJoinGroup(metadata []byte) *kmsg.JoinGroupRequest {
	req := kmsg.NewPtrJoinGroupRequest()
	req.Group, req.ProtocolType = "group", "consumer"
	for p := range 5 {
		protocol := kmsg.NewJoinGroupRequestProtocol()
		protocol.Name, protocol.Metadata = fmt.Sprint("protocol", p), metadata
		req.Protocols = append(req.Protocols, protocol)
	}
	return req
}

func servedVersions(t *testing.T, key int16) (low, high int16) {
	t.Helper()
	versions, err := NewVersions(key, KeyApiVersions)
	if err != nil {
		t.Fatal(err)
	}
	low, high, _ = versions.Range(key)
	return low, high
}

// The walk agrees with what kmsg decodes, in every version.
func TestWalkBulkCountsWhatIsDecoded(t *testing.T) {
	for _, req := range []kmsg.Request{bulkOffsetCommit("metadata"), bulkJoinGroup([]byte("metadata"))} {
		low, high := servedVersions(t, req.Key())
		for version := low; version <= high; version++ {
			req.SetVersion(version)
			body := req.AppendTo(nil)
			decoded := newRequest(req.Key(), version)
			if err := parseBody(decoded, body); err != nil {
				t.Fatal(err)
			}
			elements, err := walkBulk(req.Key(), version, body)
			if want := measure(decoded).elements; err != nil || int64(elements) != want {
				t.Errorf("%s v%d: %d elements, %v; decoded are %d", kmsg.NameForKey(req.Key()), version, elements, err, want)
			}
			for cut := range body {
				if _, err := walkBulk(req.Key(), version, body[:cut]); err == nil {
					t.Errorf("%s v%d cut to %d of %d bytes is accepted", kmsg.NameForKey(req.Key()), version, cut, len(body))
				}
			}
		}
	}
}

func TestWalkBulkRefusesManyElements(t *testing.T) {
	zeros := make([]byte, 8<<20)
	zeros[14], zeros[15], zeros[16], zeros[17] = 0, 0x20, 0, 0 // OffsetCommit v2: 2,097,152 topics of six bytes would not fit
	for key := range bulkWalks {
		low, high := servedVersions(t, key)
		for version := low; version <= high; version++ {
			allocs := testing.AllocsPerRun(1, func() { _, _ = walkBulk(key, version, zeros) })
			if allocs > 20 { // an error
				t.Errorf("%s v%d: %v allocations", kmsg.NameForKey(key), version, allocs)
			}
		}
	}
}

// Text of the client's own may be as long as the largest frame: the handler answers it
// with Kafka's own error code. Other requests of that size are refused.
func TestBulkRequestsReachTheirHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 20 << 20
		var seen []int16
		h := start(t, Options{}, func(_ context.Context, r *Request) (Reply, error) {
			seen = append(seen, r.Key)
			return now(r), nil
		})
		c := h.dial()
		c.request(bulkOffsetCommit(strings.Repeat("x", size/12)), 9, 1)
		c.expect(1, kmsg.NewPtrOffsetCommitResponse(), 9)
		c.request(bulkJoinGroup(make([]byte, size/5)), 7, 2)
		c.expect(2, kmsg.NewPtrJoinGroupResponse(), 7)
		if len(seen) != 2 {
			t.Fatalf("handled: %v", seen)
		}
	})
}
