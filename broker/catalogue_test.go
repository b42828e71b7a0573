package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/streamstore"
)

func TestCatalogueSurvivesRestart(t *testing.T) {
	m := newMachine()
	b := m.open(t, nil)
	orders := b.mustCreate("orders", 3, "retention.ms", "60000", "max.message.bytes", "2000", "segment.bytes", "1000000")
	b.mustCreate("gone", 1)
	b.mustDelete("gone")
	stream := b.mustCreate("sessions/alice", -1, "retention.bytes", "5000")
	before, _ := b.topics.byName("orders")
	cluster := b.ClusterID()
	b.stop()

	b = m.open(t, nil)
	if b.ClusterID() != cluster || len(cluster) != 22 {
		t.Errorf("cluster id %q became %q", cluster, b.ClusterID())
	}
	after, err := b.topics.byName("orders")
	if err != nil {
		t.Fatal(err)
	}
	if after.id != before.id || after.id != orders.TopicID || !after.created.Equal(before.created) {
		t.Errorf("identity changed: %v %v became %v %v", before.id, before.created, after.id, after.created)
	}
	if !maps.Equal(after.config.overrides, before.config.overrides) || after.config.maxMessageBytes != 2000 {
		t.Errorf("configs %v became %v", before.config.overrides, after.config.overrides)
	}
	for p := range before.partitions {
		if before.partitions[p] != after.partitions[p] {
			t.Errorf("partition %d: stream %d became %d", p, before.partitions[p], after.partitions[p])
		}
	}
	if _, err := b.topics.byName("gone"); err != kafkaproto.ErrUnknownTopicOrPartition {
		t.Errorf("deleted topic: %v", err)
	}
	if s, err := b.topics.byID(stream.TopicID); err != nil || s.name != "sessions/alice" {
		t.Errorf("stream by id: %v, %v", s, err)
	}
}

func TestRecreatedTopicIsAnother(t *testing.T) {
	for _, name := range []string{"orders", "sessions/alice"} {
		b := newAdminBroker(t, nil)
		first := b.mustCreate(name, 1)
		old, _ := b.topics.byName(name)
		b.mustDelete(name)
		if _, err := b.topics.byName(name); err != kafkaproto.ErrUnknownTopicOrPartition {
			t.Errorf("%s: after deletion by name: %v", name, err)
		}
		second := b.mustCreate(name, 1)
		now, err := b.topics.byName(name)
		if err != nil {
			t.Fatal(err)
		}
		if first.TopicID == second.TopicID || now.partitions[0] == old.partitions[0] {
			t.Errorf("%s: ids were used again", name)
		}
		if _, err := b.topics.byID(first.TopicID); err != kafkaproto.ErrUnknownTopicID {
			t.Errorf("%s: old id: %v", name, err)
		}
		if found, err := b.topics.byID(second.TopicID); err != nil || found.name != name {
			t.Errorf("%s: new id: %v, %v", name, found, err)
		}
	}
}

// The cache of named streams must notice what happens to them without its help.
func TestStreamCacheNoticesDeletion(t *testing.T) {
	b := newAdminBroker(t, nil)
	b.mustCreate("sessions/alice", -1)
	old, err := b.topics.byName("sessions/alice")
	if err != nil {
		t.Fatal(err)
	}
	txn := streamstore.NewTxn()
	txn.Delete(old.partitions[0])
	if _, err := b.store.Commit(context.Background(), txn); err != nil {
		t.Fatal(err)
	}
	if _, err := b.topics.byName("sessions/alice"); err != kafkaproto.ErrUnknownTopicOrPartition {
		t.Errorf("by name: %v", err)
	}
	if _, err := b.topics.byID(old.id); err != kafkaproto.ErrUnknownTopicID {
		t.Errorf("by id: %v", err)
	}
	b.mustCreate("sessions/alice", -1)
	if now, err := b.topics.byName("sessions/alice"); err != nil || now.id == old.id {
		t.Errorf("after it was made again: %v, %v", now, err)
	}
}

// Ids of topic partitions and of the broker's own streams must not be reachable as named streams.
func TestStreamIDsOfOthersAreUnknown(t *testing.T) {
	b := newAdminBroker(t, nil)
	b.mustCreate("orders", 1)
	orders, _ := b.topics.byName("orders")
	id, err := b.store.Ensure(context.Background(), "_own/state", streamstore.DefaultSettings())
	if err != nil {
		t.Fatal(err)
	}
	for _, sid := range []streamstore.StreamID{orders.partitions[0], id, 1 << 60} {
		if found, err := b.topics.byID(streamTopicID(sid)); err != kafkaproto.ErrUnknownTopicID {
			t.Errorf("stream %d: found %v, error %v", sid, found, err)
		}
	}
}

func TestNames(t *testing.T) {
	for name, valid := range map[string]bool{
		"orders":                         true,
		"a.b_c-D9":                       true,
		"__consumer_offsets":             true,
		strings.Repeat("x", 249):         true,
		strings.Repeat("x", 250):         false,
		"":                               false,
		".":                              false,
		"..":                             false,
		"a b":                            false,
		"ü":                              false,
		"sessions/alice":                 true,
		"sessions/ü b":                   true,
		"sessions/":                      false,
		"/sessions":                      false,
		"a/../b":                         false,
		"_own/state":                     false,
		"topics/orders/0":                false,
		"topicsx/orders":                 true,
		"a/" + strings.Repeat("x", 1023): false,
	} {
		err := checkName(name)
		if valid != (err == nil) {
			t.Errorf("%q: %v", name, err)
		}
		if err != nil && (err.Code != kafkaproto.ErrInvalidTopic.Code || err.Message == "") {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestTopicIDs(t *testing.T) {
	for range 1000 {
		id := newTopicID()
		if _, ok := id.stream(); ok || id.String()[0] == '-' || len(id.String()) != 22 || id[6]>>4 != 4 {
			t.Fatalf("random id %v", id)
		}
	}
	if sid, ok := streamTopicID(7).stream(); !ok || sid != 7 {
		t.Errorf("stream id came back as %d, %v", sid, ok)
	}
	if streamTag[6]>>4 == 4 {
		t.Error("a random id could begin like that of a stream")
	}
}

func TestTopicRow(t *testing.T) {
	want := topicRow{id: newTopicID(), created: time.UnixMilli(1234567890123), partitions: 7, overrides: map[string]string{"a": "", "retention.ms": "1"}}
	encoded := want.encode()
	got, err := decodeTopicRow(encoded)
	if err != nil || got.id != want.id || !got.created.Equal(want.created) || got.partitions != 7 || !maps.Equal(got.overrides, want.overrides) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	for cut := range len(encoded) {
		if _, err := decodeTopicRow(encoded[:cut]); !errors.Is(err, errBadRow) {
			t.Errorf("cut at %d: %v", cut, err)
		}
	}
	for what, bad := range map[string][]byte{
		"longer":        append(encoded[:len(encoded):len(encoded)], 0),
		"version":       append([]byte{2}, encoded[1:]...),
		"no partitions": topicRow{id: want.id, created: want.created}.encode(),
	} {
		if _, err := decodeTopicRow(bad); !errors.Is(err, errBadRow) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A default of the broker holds for topics that were made under another one, too.
func TestNewDefaultRetentionReachesOldTopics(t *testing.T) {
	m := newMachine()
	b := m.open(t, nil)
	b.mustCreate("follows", 2)
	b.mustCreate("own", 1, "retention.ms", "5000")
	if got := b.settingsOf("follows", 1); got.Retention != defaultRetention || got.RetentionBytes != -1 {
		t.Errorf("at first: %+v", got)
	}
	b.stop()
	b = m.open(t, func(o *Options) { o.DefaultRetention, o.DefaultRetentionBytes = time.Hour, 1000 })
	if got := b.settingsOf("follows", 1); got.Retention != time.Hour || got.RetentionBytes != 1000 {
		t.Errorf("after the default changed: %+v", got)
	}
	if got := b.settingsOf("own", 0); got.Retention != 5*time.Second || got.RetentionBytes != 1000 {
		t.Errorf("topic with its own retention: %+v", got)
	}
}

// Requests that race for one name get one winner, and those that do not share names do not disturb each other.
func TestConcurrentChanges(t *testing.T) {
	b := newAdminBroker(t, nil)
	const writers, names = 4, 10
	var wg sync.WaitGroup
	var mu sync.Mutex
	won := map[string]int{}
	for range writers {
		wg.Go(func() {
			for n := range names {
				name := fmt.Sprintf("topic-%d", n)
				_, errs := b.topics.create(context.Background(), []creation{b.topics.newCreation(name)}, []*kafkaproto.Error{nil}, causeRequest, false)
				mu.Lock()
				if errs[0] == nil {
					won[name]++
				} else if errs[0] != kafkaproto.ErrTopicAlreadyExists {
					t.Errorf("%s: %v", name, errs[0])
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(won) != names || len(b.topics.load().byName) != names || b.topics.load().partitions != names {
		t.Errorf("created %v", won)
	}
	for name, n := range won {
		if n != 1 {
			t.Errorf("%s was created %d times", name, n)
		}
	}
	if len(b.topics.mu.busy) != 0 {
		t.Errorf("names are still reserved: %v", b.topics.mu.busy)
	}
}

// A request that gives up must not hide a topic that the store holds: the catalogue learns of it all the same.
func TestChangeOutlivesItsRequest(t *testing.T) {
	b := newAdminBroker(t, nil)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	b.topics.create(ctx, []creation{b.topics.newCreation("orders")}, []*kafkaproto.Error{nil}, causeRequest, false)
	b.topics.commits.Wait()
	if _, err := b.topics.byName("orders"); err != nil {
		t.Error(err)
	}
	if len(b.topics.mu.busy) != 0 {
		t.Errorf("names are still reserved: %v", b.topics.mu.busy)
	}
}

// A stream that others make between the look and the commit fails its own creation only.
func TestCollisionConcernsOneName(t *testing.T) {
	b := newAdminBroker(t, nil)
	ctx := context.Background()
	wanted := []string{"orders", "sessions/alice", "payments"}
	interfered := false
	errs := b.topics.change(ctx, wanted, make([]*kafkaproto.Error, 3), false, func(p *plan, i int) *kafkaproto.Error {
		w := b.topics.newCreation(wanted[i])
		var made *topic
		if !isStreamName(w.name) {
			b.topics.planTopic(p, &w, causeRequest, &made)
			return nil
		}
		if !interfered {
			interfered = true
			if _, err := b.store.Ensure(ctx, w.name, streamstore.DefaultSettings()); err != nil {
				t.Error(err)
			}
		}
		b.topics.planStream(p, &w, causeRequest, &made)
		return nil
	})
	wantCode(t, "orders", kafkaproto.CodeOf(asError(errs[0])), nil)
	wantCode(t, "stream", kafkaproto.CodeOf(asError(errs[1])), kafkaproto.ErrTopicAlreadyExists)
	wantCode(t, "payments", kafkaproto.CodeOf(asError(errs[2])), nil)
	for _, name := range wanted {
		if _, err := b.topics.byName(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAutoCreate(t *testing.T) {
	ctx := context.Background()
	b := newAdminBroker(t, func(o *Options) { o.DefaultPartitions = 4 })
	topics, errs := b.topics.autoCreateAll(ctx, []string{"orders", "sessions/alice", "a b", "_own/x"})
	wantCode(t, "topic", kafkaproto.CodeOf(asError(errs[0])), nil)
	wantCode(t, "stream", kafkaproto.CodeOf(asError(errs[1])), nil)
	wantCode(t, "bad topic", kafkaproto.CodeOf(asError(errs[2])), kafkaproto.ErrInvalidTopic)
	wantCode(t, "bad stream", kafkaproto.CodeOf(asError(errs[3])), kafkaproto.ErrInvalidTopic)
	if len(topics[0].partitions) != 4 || len(topics[1].partitions) != 1 {
		t.Errorf("partitions: %d, %d", len(topics[0].partitions), len(topics[1].partitions))
	}
	if again, errs := b.topics.autoCreateAll(ctx, []string{"orders"}); errs[0] != nil || again[0].id != topics[0].id {
		t.Errorf("again: %v, %v", again[0], errs[0])
	}
	if got := b.settingsOf("sessions/alice", 0); got != streamstore.DefaultSettings() {
		t.Errorf("stream settings: %+v", got)
	}

	off := newAdminBroker(t, func(o *Options) { o.AutoCreateTopics = false })
	for _, name := range []string{"orders", "sessions/alice"} {
		if _, errs := off.topics.autoCreateAll(ctx, []string{name}); errs[0] != kafkaproto.ErrUnknownTopicOrPartition {
			t.Errorf("%s with auto-create off: %v", name, errs[0])
		}
	}
}

func TestLookUpsDoNotAllocate(t *testing.T) {
	b := newAdminBroker(t, nil)
	id := topicID(b.mustCreate("orders", 1).TopicID)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := b.topics.byName("orders"); err != nil {
			t.Error(err)
		}
		if _, err := b.topics.byID(id); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
