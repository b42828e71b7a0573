package kfake

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
)

func TestSealBatch(t *testing.T) {
	record := kmsg.Record{Value: []byte("v")}
	record.Length = int32(len(record.AppendTo(nil)) - 1)
	batch := kmsg.RecordBatch{Magic: 2, ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, NumRecords: 1, Records: record.AppendTo(nil)}
	sealed := kafkaproto.RecordBatch(sealBatch(batch.AppendTo(nil)))
	if sealed.Len() != len(sealed) || sealed.CRC() != sealed.ComputeCRC() {
		t.Errorf("a batch of %d bytes says %d, checksum %08x, want %08x", len(sealed), sealed.Len(), sealed.CRC(), sealed.ComputeCRC())
	}
}

func TestRelayShowsRequests(t *testing.T) {
	sent := kmsg.NewPtrFetchRequest()
	sent.Version = 12 // flexible
	topic := kmsg.NewFetchRequestTopic()
	topic.Topic = "shown"
	sent.Topics = append(sent.Topics, topic)
	frame := kmsg.NewRequestFormatter(kmsg.FormatterClientID("client")).AppendRequest(nil, sent, 1)

	read, err := readFrame(bufio.NewReader(bytes.NewReader(append(frame, 1, 2, 3))))
	if err != nil || !bytes.Equal(read, frame) {
		t.Fatalf("read %d bytes, %v; want %d", len(read), err, len(frame))
	}
	r := &relay{observers: make(map[int16][]func(kmsg.Request))}
	var got []string
	r.observe(int16(kmsg.Fetch), func(r kmsg.Request) { got = append(got, r.(*kmsg.FetchRequest).Topics[0].Topic) })
	r.show(read[4:])
	binary.BigEndian.PutUint16(read[4:], uint16(kmsg.Metadata))
	r.show(read[4:]) // of no interest
	if len(got) != 1 || got[0] != "shown" {
		t.Errorf("the observer saw %q", got)
	}
}
