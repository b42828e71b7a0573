package main

import (
	"crypto/rand"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A client that does not take its reply is cut, and the stop is an orderly one all the same: what is only on the disk
// goes to the bucket.
func TestStopCutsClientsThatDoNotRead(t *testing.T) {
	args := serveArgs(t.TempDir(), "--drain-timeout", "3s", "--flush-interval", "1h")
	p := start(t, command(t, args...))
	address := p.address("serving Kafka clients")
	client := newClient(t, address)
	value := make([]byte, 900<<10)
	_, _ = rand.Read(value) // what does not compress; never fails
	for range 50 {
		if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: "orders", Value: value}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	client.Close()

	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	request := kmsg.NewPtrFetchRequest()
	request.Version, request.MaxBytes, request.MinBytes, request.SessionEpoch = 11, 50<<20, 1, -1
	topic, partition := kmsg.NewFetchRequestTopic(), kmsg.NewFetchRequestTopicPartition()
	topic.Topic, partition.PartitionMaxBytes = "orders", 50<<20
	topic.Partitions = append(topic.Partitions, partition)
	request.Topics = append(request.Topics, topic)
	if _, err := conn.Write(kmsg.NewRequestFormatter().AppendRequest(nil, request, 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil { // the reply is on its way, and will not be read on
		t.Fatal(err)
	}

	p.signal(syscall.SIGTERM)
	code, text := p.exit()
	if code != 0 || !strings.Contains(text, "did not take their replies were cut") {
		t.Errorf("exit code %d after SIGTERM:\n%s", code, text)
	}
	again := start(t, command(t, args...))
	if found := again.await("recovered")["tail_appends"]; found != 0.0 {
		t.Errorf("%v appends had not been flushed", found)
	}
	again.stop()
}
