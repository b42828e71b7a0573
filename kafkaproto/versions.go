package kafkaproto

import (
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// API keys, named as in kmsg. They are typed as the wire has them.
const (
	KeyProduce                    int16 = 0
	KeyFetch                      int16 = 1
	KeyListOffsets                int16 = 2
	KeyMetadata                   int16 = 3
	KeyOffsetCommit               int16 = 8
	KeyOffsetFetch                int16 = 9
	KeyFindCoordinator            int16 = 10
	KeyJoinGroup                  int16 = 11
	KeyHeartbeat                  int16 = 12
	KeyLeaveGroup                 int16 = 13
	KeySyncGroup                  int16 = 14
	KeyDescribeGroups             int16 = 15
	KeyListGroups                 int16 = 16
	KeyApiVersions                int16 = 18
	KeyCreateTopics               int16 = 19
	KeyDeleteTopics               int16 = 20
	KeyDeleteRecords              int16 = 21
	KeyInitProducerID             int16 = 22
	KeyOffsetForLeaderEpoch       int16 = 23
	KeyDescribeACLs               int16 = 29
	KeyCreateACLs                 int16 = 30
	KeyDeleteACLs                 int16 = 31
	KeyDescribeConfigs            int16 = 32
	KeyAlterConfigs               int16 = 33
	KeyAlterReplicaLogDirs        int16 = 34
	KeyDescribeLogDirs            int16 = 35
	KeyCreatePartitions           int16 = 37
	KeyDeleteGroups               int16 = 42
	KeyElectLeaders               int16 = 43
	KeyIncrementalAlterConfigs    int16 = 44
	KeyAlterPartitionAssignments  int16 = 45
	KeyListPartitionReassignments int16 = 46
	KeyOffsetDelete               int16 = 47
	KeyDescribeClientQuotas       int16 = 48
	KeyAlterClientQuotas          int16 = 49
	KeyDescribeQuorum             int16 = 55
	KeyUpdateFeatures             int16 = 57
	KeyDescribeCluster            int16 = 60
	KeyDescribeProducers          int16 = 61
	KeyUnregisterBroker           int16 = 64
	KeyConsumerGroupHeartbeat     int16 = 68
	KeyConsumerGroupDescribe      int16 = 69
	KeyListConfigResources        int16 = 74
	KeyDescribeTopicPartitions    int16 = 75
)

// versionRange is what is served of one API.
type versionRange struct {
	key, min, max int16
	// advertisedMin is what ApiVersions says. It differs from min for Produce only.
	advertisedMin int16
}

// served lists all APIs this package can carry, by key. Minimums are those of Kafka
// 4.0 (KIP-896) or lower, where clients in use still start lower: Metadata and
// FindCoordinator 0 (kafka-python, Sarama), JoinGroup, CreateTopics and DeleteTopics
// 0 or 1 (segmentio kafka-go), DescribeConfigs 0 (Sarama). The oldest clients served
// are therefore those that speak record batches (Kafka 0.11). ListOffsets v0, which
// answers with a list of segment starts and not with an offset, is not served; its
// senders are clients older than 0.10.1.
//
// To serve a newer version, raise max and note the KIP; to serve another API, add a
// row. kmsg must know the version: a test holds the table against it.
var served = []versionRange{
	// 4 storage error, 5 log start offset, 7 zstd (KIP-110), 8 record errors
	// (KIP-467), 9 flexible (KIP-482), 10 leader hints (KIP-951), 11 and 12
	// transactions v2 (KIP-890), 13 topic ids (KIP-516).
	//
	// Advertised from 0: older releases of librdkafka take a minimum above 0 for
	// a broker that cannot do compression (KAFKA-18659). 0 to 2 carry formats older than
	// record batches and are refused when they come.
	{key: KeyProduce, min: 3, max: 13, advertisedMin: 0},
	// 5 log start offset, 7 sessions (KIP-227), 9 leader epoch (KIP-320), 10 zstd
	// (KIP-110), 11 rack (KIP-392), 12 flexible and diverging epoch (KIP-595), 13
	// topic ids (KIP-516), 15 replica state (KIP-903), 16 node endpoints (KIP-951),
	// 17 directory id (KIP-853), 18 replica high watermark (KIP-1166).
	same(KeyFetch, 4, 18),
	// 2 isolation (KIP-98), 4 leader epoch (KIP-320), 7 max timestamp (KIP-734), 8
	// and 9 tiered offsets (KIP-405, KIP-1005), 10 timeout (KIP-1075), 11 earliest
	// pending upload (KIP-1023).
	same(KeyListOffsets, 1, 11),
	// 4 auto-create flag, 7 leader epoch (KIP-320), 8 authorized operations
	// (KIP-430), 10 topic ids (KIP-516), 12 request by id, 13 error at top (KIP-1102).
	same(KeyMetadata, 0, 13),
	// 5 no retention time, 6 leader epoch (KIP-320), 7 instance id (KIP-345), 8
	// flexible, 9 errors of new groups (KIP-848), 10 topic ids (KIP-848).
	same(KeyOffsetCommit, 2, 10),
	// 2 all topics, 5 leader epoch (KIP-320), 6 flexible, 7 require stable (KIP-447), 8
	// many groups (KIP-709), 9 member epoch and 10 topic ids (KIP-848).
	same(KeyOffsetFetch, 1, 10),
	// 1 transaction coordinators (KIP-98), 4 many keys (KIP-699), 5 abortable error
	// (KIP-890), 6 share groups (KIP-932).
	same(KeyFindCoordinator, 0, 6),
	// 1 rebalance timeout (KIP-62), 4 member id required (KIP-394), 5 instance id
	// (KIP-345), 6 flexible, 7 protocol type (KIP-559), 8 reason (KIP-800), 9 skip
	// assignment (KIP-814).
	same(KeyJoinGroup, 0, 9),
	// 3 instance id (KIP-345), 4 flexible.
	same(KeyHeartbeat, 0, 4),
	// 3 many members (KIP-345), 4 flexible, 5 reason (KIP-800).
	same(KeyLeaveGroup, 0, 5),
	// 3 instance id (KIP-345), 4 flexible, 5 protocol (KIP-559).
	same(KeySyncGroup, 0, 5),
	// 3 authorized operations (KIP-430), 4 instance id (KIP-345), 5 flexible, 6 group id
	// not found (KIP-1043).
	same(KeyDescribeGroups, 0, 6),
	// 3 flexible, 4 states (KIP-518), 5 types (KIP-848).
	same(KeyListGroups, 0, 5),
	// 3 client software and features (KIP-511, KIP-584), 4 features from 0
	// (KIP-1022), 5 cluster and node id (KIP-1242).
	same(KeyApiVersions, 0, 5),
	// 4 defaults (KIP-464), 5 configs in the reply (KIP-525), 6 quotas (KIP-599), 7
	// topic ids (KIP-516).
	same(KeyCreateTopics, 0, 7),
	// 3 deletion disabled (KIP-322), 5 message (KIP-599), 6 topic ids (KIP-516).
	same(KeyDeleteTopics, 0, 6),
	// 2 flexible (KIP-482).
	same(KeyDeleteRecords, 0, 2),
	// 3 epoch bump (KIP-360), 4 fenced error (KIP-588), 5 abortable error (KIP-890).
	same(KeyInitProducerID, 0, 5),
	// 2 current leader epoch (KIP-320), 3 replica id (KIP-392), 4 flexible.
	same(KeyOffsetForLeaderEpoch, 2, 4),
	// 1 pattern type (KIP-290), 2 flexible, 3 user resource (KIP-373).
	same(KeyDescribeACLs, 1, 3),
	same(KeyCreateACLs, 1, 3),
	same(KeyDeleteACLs, 1, 3),
	// 1 synonyms (KIP-226), 3 types and documentation (KIP-569), 4 flexible.
	same(KeyDescribeConfigs, 0, 4),
	// 2 flexible.
	same(KeyAlterConfigs, 0, 2),
	// 2 flexible.
	same(KeyAlterReplicaLogDirs, 1, 2),
	// 3 error at top, 4 volume sizes (KIP-827), 5 cordoned directories (KIP-1066).
	same(KeyDescribeLogDirs, 1, 5),
	// 2 flexible, 3 quotas (KIP-599).
	same(KeyCreatePartitions, 0, 3),
	// 2 flexible, 3 message (KIP-1331).
	same(KeyDeleteGroups, 0, 3),
	// 1 election type (KIP-460), 2 flexible.
	same(KeyElectLeaders, 0, 2),
	// 1 flexible.
	same(KeyIncrementalAlterConfigs, 0, 1),
	// 1 change of the replication factor (KIP-860).
	same(KeyAlterPartitionAssignments, 0, 1),
	// 0 KIP-455.
	same(KeyListPartitionReassignments, 0, 0),
	// 0 KIP-496.
	same(KeyOffsetDelete, 0, 0),
	// 1 flexible.
	same(KeyDescribeClientQuotas, 0, 1),
	same(KeyAlterClientQuotas, 0, 1),
	// 1 fetch times (KIP-836), 2 directory ids and nodes (KIP-853).
	same(KeyDescribeQuorum, 0, 2),
	// 1 validate only (KIP-778), 2 no results per feature (KIP-1022).
	same(KeyUpdateFeatures, 0, 2),
	// 0 KIP-700, 1 endpoint type (KIP-919), 2 fenced brokers (KIP-1073).
	same(KeyDescribeCluster, 0, 2),
	// 0 KIP-664.
	same(KeyDescribeProducers, 0, 0),
	// 0 KIP-631.
	same(KeyUnregisterBroker, 0, 0),
	// 1 regular expressions (KIP-848) and ids made by clients (KIP-1082).
	same(KeyConsumerGroupHeartbeat, 0, 1),
	// 1 member type (KIP-1099).
	same(KeyConsumerGroupDescribe, 0, 1),
	// 0 client metrics (KIP-714), 1 all types (KIP-1142).
	same(KeyListConfigResources, 0, 1),
	// 0 KIP-966.
	same(KeyDescribeTopicPartitions, 0, 0),
}

func same(key, low, high int16) versionRange {
	return versionRange{key: key, min: low, max: high, advertisedMin: low}
}

func servedRange(key int16) (versionRange, bool) {
	i, ok := slices.BinarySearchFunc(served, key, func(r versionRange, key int16) int { return int(r.key) - int(key) })
	if !ok {
		return versionRange{}, false
	}
	return served[i], true
}

// Versions is the set of APIs that one broker serves, each with the range of
// versions from this package's table. It is immutable.
type Versions struct {
	ranges []versionRange // by key
	byKey  map[int16]versionRange
}

// NewVersions returns the version table for the keys that a broker has handlers for.
// ApiVersions must be among them: without it no client gets past its first request.
// A key that the table does not have, or one named twice, is an error.
func NewVersions(keys ...int16) (*Versions, error) {
	v := &Versions{byKey: make(map[int16]versionRange, len(keys))}
	for _, key := range keys {
		r, ok := servedRange(key)
		if !ok {
			return nil, fmt.Errorf("kafkaproto: no version range for API key %d (%s); add a row to the table in versions.go", key, kmsg.NameForKey(key))
		}
		if _, dup := v.byKey[key]; dup {
			return nil, fmt.Errorf("kafkaproto: API key %d (%s) is registered twice", key, kmsg.NameForKey(key))
		}
		v.byKey[key] = r
		v.ranges = append(v.ranges, r)
	}
	if _, ok := v.byKey[KeyApiVersions]; !ok {
		return nil, fmt.Errorf("kafkaproto: API key %d (ApiVersions) is not registered", KeyApiVersions)
	}
	slices.SortFunc(v.ranges, func(a, b versionRange) int { return int(a.key) - int(b.key) })
	return v, nil
}

// Range returns the versions of key that are served. ok is false if none is.
func (v *Versions) Range(key int16) (low, high int16, ok bool) {
	r, ok := v.byKey[key]
	return r.min, r.max, ok
}

// Keys returns the served keys in ascending order.
func (v *Versions) Keys() []int16 {
	keys := make([]int16, len(v.ranges))
	for i, r := range v.ranges {
		keys[i] = r.key
	}
	return keys
}

// ApiKeys returns the list for an ApiVersions response of the given version, sorted
// by key. All versions known today list the same ranges.
func (v *Versions) ApiKeys(_ int16) []kmsg.ApiVersionsResponseApiKey {
	keys := make([]kmsg.ApiVersionsResponseApiKey, len(v.ranges))
	for i, r := range v.ranges {
		keys[i] = kmsg.NewApiVersionsResponseApiKey()
		keys[i].ApiKey, keys[i].MinVersion, keys[i].MaxVersion = r.key, r.advertisedMin, r.max
	}
	return keys
}

// supports tells whether version of key is served.
func (v *Versions) supports(key, version int16) bool {
	r, ok := v.byKey[key]
	return ok && r.min <= version && version <= r.max
}

// unsupportedApiVersions is the answer to an ApiVersions request that is too new:
// shaped as v0, so that every client can read it, with error 35 and the range to
// try again in (KIP-511).
func (v *Versions) unsupportedApiVersions() *kmsg.ApiVersionsResponse {
	resp := kmsg.NewPtrApiVersionsResponse()
	resp.SetVersion(0)
	resp.ErrorCode = ErrUnsupportedVersion.Code
	r := v.byKey[KeyApiVersions]
	k := kmsg.NewApiVersionsResponseApiKey()
	k.ApiKey, k.MinVersion, k.MaxVersion = r.key, r.advertisedMin, r.max
	resp.ApiKeys = append(resp.ApiKeys, k)
	return resp
}
