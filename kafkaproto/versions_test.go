package kafkaproto

import (
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestVersionTable(t *testing.T) {
	for i, r := range served {
		name := kmsg.NameForKey(r.key)
		if i > 0 && served[i-1].key >= r.key {
			t.Errorf("%s: the table is not sorted by key", name)
		}
		req := kmsg.RequestForKey(r.key)
		if req == nil {
			t.Fatalf("kmsg does not know key %d", r.key)
		}
		if r.max > req.MaxVersion() {
			t.Errorf("%s: v%d is served, kmsg knows up to v%d", name, r.max, req.MaxVersion())
		}
		if r.min > r.max || r.min < 0 || r.advertisedMin > r.min {
			t.Errorf("%s: impossible range %+v", name, r)
		}
		if r.advertisedMin != r.min && r.key != KeyProduce {
			t.Errorf("%s: advertised from %d, served from %d", name, r.advertisedMin, r.min)
		}
	}
}

// Versions that clients in use send without asking, or test for. Losing one locks
// such a client out.
func TestVersionsThatClientsDependOn(t *testing.T) {
	v := allVersions(t)
	for _, tc := range []struct {
		key, version int16
		client       string
	}{
		{KeyMetadata, 0, "kafka-python 2.0 bootstrap"},
		{KeyMetadata, 1, "kafka-go 0.4 Conn"},
		{KeyFindCoordinator, 0, "kafka-go 0.4, and librdkafka's test for lz4"},
		{KeyJoinGroup, 1, "kafka-go 0.4"},
		{KeySyncGroup, 0, "kafka-go 0.4"},
		{KeyHeartbeat, 0, "kafka-go 0.4"},
		{KeyLeaveGroup, 0, "kafka-go 0.4"},
		{KeyOffsetCommit, 2, "kafka-go 0.4, kafka-python 2.0"},
		{KeyOffsetFetch, 1, "kafka-go 0.4, kafka-python 2.0"},
		{KeyListGroups, 1, "kafka-go 0.4"},
		{KeyJoinGroup, 5, "librdkafka, static members"},
		{KeyCreateTopics, 0, "kafka-go 0.4"},
		{KeyDeleteTopics, 0, "kafka-go 0.4"},
		{KeyProduce, 3, "kafka-go 0.4"},
		{KeyProduce, 7, "librdkafka's test for zstd"},
		{KeyFetch, 4, "kafka-python 2.0"},
		{KeyFetch, 10, "librdkafka's test for zstd"},
		{KeyListOffsets, 1, "kafka-python 2.0"},
		{KeyOffsetForLeaderEpoch, 2, "librdkafka, this version only"},
		{KeyDescribeConfigs, 0, "Sarama with the version of Kafka 0.11 or 1.0"},
		{KeyDescribeConfigs, 1, "librdkafka"},
		{KeyDescribeACLs, 2, "kafka-python 2.0's test for Kafka 2.5"},
		{KeyAlterConfigs, 1, "kafkajs 2.2"},
		{KeyApiVersions, 0, "kafka-python 2.0"},
	} {
		if !v.supports(tc.key, tc.version) {
			t.Errorf("%s v%d is not served: %s", kmsg.NameForKey(tc.key), tc.version, tc.client)
		}
	}
}

func TestApiKeys(t *testing.T) {
	v, err := NewVersions(KeyMetadata, KeyApiVersions, KeyProduce)
	if err != nil {
		t.Fatal(err)
	}
	keys := v.ApiKeys(3)
	if got := v.Keys(); !slices.Equal(got, []int16{KeyProduce, KeyMetadata, KeyApiVersions}) {
		t.Error(got)
	}
	if len(keys) != 3 {
		t.Fatal(keys)
	}
	// Produce is advertised from 0 and served from 3.
	if k := keys[0]; k.ApiKey != KeyProduce || k.MinVersion != 0 || k.MaxVersion != 13 {
		t.Error(k)
	}
	if low, high, ok := v.Range(KeyProduce); !ok || low != 3 || high != 13 {
		t.Error(low, high, ok)
	}
	if k := keys[1]; k.ApiKey != KeyMetadata || k.MinVersion != 0 || k.MaxVersion != 13 {
		t.Error(k)
	}
	if _, _, ok := v.Range(KeyFetch); ok {
		t.Error("Fetch was not registered")
	}
}

func TestNewVersionsRefusesWhatItCannotServe(t *testing.T) {
	for name, keys := range map[string][]int16{
		"no ApiVersions": {KeyProduce},
		"unknown key":    {KeyApiVersions, 4},
		"named twice":    {KeyApiVersions, KeyFetch, KeyFetch},
	} {
		if _, err := NewVersions(keys...); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
