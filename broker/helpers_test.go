package broker

import (
	"context"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/objstore"
	"github.com/brookletmq/brooklet/streamstore"
)

// machine is what survives a broker: a disk and a bucket, both in memory.
type machine struct {
	disk   vfs.FS
	bucket objstore.Bucket
}

func newMachine() *machine { return &machine{disk: vfs.NewMem(), bucket: objstore.NewMemory()} }

// adminBroker is a broker for tests of catalogue and admin requests.
type adminBroker struct {
	*Broker
	t   testing.TB
	reg *prometheus.Registry
	// stop closes broker and store. It runs at the end of the test at the latest.
	stop func()
}

// newAdminBroker opens a broker on a machine of its own. edit, which may be nil, changes its options.
func newAdminBroker(t testing.TB, edit func(*Options)) *adminBroker {
	return newMachine().open(t, edit)
}

func (m *machine) open(t testing.TB, edit func(*Options)) *adminBroker {
	t.Helper()
	store, err := streamstore.Open(context.Background(), streamstore.Options{Dir: "data", FS: m.disk, Bucket: m.bucket, MinFreeBytes: -1})
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	opts := Options{AdvertisedHost: "broker.test", AdvertisedPort: 9092, AutoCreateTopics: true, Store: store, Registerer: reg}
	if edit != nil {
		edit(&opts)
	}
	b, err := New(context.Background(), opts)
	if err != nil {
		store.Close()
		t.Fatal(err)
	}
	a := &adminBroker{Broker: b, t: t, reg: reg}
	stopped := false
	a.stop = func() {
		if stopped {
			return
		}
		stopped = true
		b.Close()
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(a.stop)
	return a
}

// ask sends a request in the given version through its encoding, and returns the reply as a client decodes it.
func ask[R kmsg.Response](b *adminBroker, version int16, req kmsg.Request) R {
	b.t.Helper()
	req.SetVersion(version)
	body := kmsg.RequestForKey(req.Key())
	body.SetVersion(version)
	if err := body.ReadFrom(req.AppendTo(nil)); err != nil {
		b.t.Fatalf("request: %v", err)
	}
	reply, err := b.Handle(context.Background(), &kafkaproto.Request{Conn: &kafkaproto.ConnInfo{}, Key: req.Key(), Version: version, Body: body})
	if err != nil {
		b.t.Fatal(err)
	}
	resp, err := reply(context.Background())
	if err != nil {
		b.t.Fatal(err)
	}
	if r, ok := resp.(kafkaproto.Releaser); ok {
		defer r.Release()
	}
	if resp.GetVersion() != version {
		b.t.Fatalf("reply has version %d, the request %d", resp.GetVersion(), version)
	}
	decoded := req.ResponseKind().(R)
	decoded.SetVersion(version)
	if err := decoded.ReadFrom(resp.AppendTo(nil)); err != nil {
		b.t.Fatalf("reply: %v", err)
	}
	return decoded
}

// wantCode fails the test unless code is that of want, nil for success.
func wantCode(t testing.TB, what string, code int16, want *kafkaproto.Error) {
	t.Helper()
	if wantCode := kafkaproto.CodeOf(asError(want)); code != wantCode {
		t.Errorf("%s: error %v, want %v", what, kerr.ErrorForCode(code), kerr.ErrorForCode(wantCode))
	}
}

func asError(e *kafkaproto.Error) error {
	if e == nil {
		return nil
	}
	return e
}

// creating is a CreateTopics request for one topic with partitions and configs (name, value, ...).
func creating(name string, partitions int32, configs ...string) *kmsg.CreateTopicsRequest {
	req := kmsg.NewPtrCreateTopicsRequest()
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = name, partitions, -1
	for i := 0; i < len(configs); i += 2 {
		c := kmsg.NewCreateTopicsRequestTopicConfig()
		c.Name, c.Value = configs[i], kmsg.StringPtr(configs[i+1])
		t.Configs = append(t.Configs, c)
	}
	req.Topics = append(req.Topics, t)
	return req
}

// mustCreate creates a topic or named stream and returns what the reply says of it.
func (b *adminBroker) mustCreate(name string, partitions int32, configs ...string) kmsg.CreateTopicsResponseTopic {
	b.t.Helper()
	resp := ask[*kmsg.CreateTopicsResponse](b, 7, creating(name, partitions, configs...))
	wantCode(b.t, "create "+name, resp.Topics[0].ErrorCode, nil)
	return resp.Topics[0]
}

// mustDelete deletes a topic or named stream.
func (b *adminBroker) mustDelete(name string) {
	b.t.Helper()
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.TopicNames = []string{name}
	resp := ask[*kmsg.DeleteTopicsResponse](b, 5, req)
	wantCode(b.t, "delete "+name, resp.Topics[0].ErrorCode, nil)
}

// settingsOf returns the store's settings of a partition.
func (b *adminBroker) settingsOf(name string, partition int32) streamstore.Settings {
	b.t.Helper()
	t, kafkaErr := b.topics.byName(name)
	if kafkaErr != nil {
		b.t.Fatal(kafkaErr)
	}
	info, err := b.store.Describe(t.partitions[partition])
	if err != nil {
		b.t.Fatal(err)
	}
	return info.Settings
}
