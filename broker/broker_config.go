package broker

import (
	"net"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// brokerConfigs returns the broker configs that tools read, in order of names. They say what this broker does in Kafka's
// words; none can be changed by request.
func (o *Options) brokerConfigs() []describedConfig {
	listener := "PLAINTEXT://" + net.JoinHostPort(o.AdvertisedHost, strconv.Itoa(int(o.AdvertisedPort)))
	node := strconv.Itoa(int(o.NodeID))
	retention := retentionMs(o.DefaultRetention)
	// Values that differ from Kafka's default are reported as set, the others as default.
	rows := []struct {
		name     string
		kind     kmsg.ConfigType
		value    string
		fallback string // Kafka's default
		doc      string
	}{
		{"advertised.listeners", kmsg.ConfigTypeString, listener, "", "The address that clients are told to connect to."},
		{"auto.create.topics.enable", kmsg.ConfigTypeBoolean, strconv.FormatBool(o.AutoCreateTopics), "true", "Whether naming a missing topic creates it."},
		{"broker.id", kmsg.ConfigTypeInt, node, "-1", "The id of this broker."},
		{"broker.rack", kmsg.ConfigTypeString, o.Rack, "", "The rack of this broker."},
		{"compression.type", kmsg.ConfigTypeString, "producer", "producer", "Batches are stored as the producer compressed them."},
		{"default.replication.factor", kmsg.ConfigTypeInt, "1", "1", "Partitions report one replica; the object store replicates."},
		{"delete.topic.enable", kmsg.ConfigTypeBoolean, "true", "true", "Topics can be deleted."},
		{"fetch.max.bytes", kmsg.ConfigTypeInt, strconv.Itoa(o.FetchMaxBytes), strconv.Itoa(defaultFetchMaxBytes), "The most records in one fetch reply, in bytes."},
		{"group.consumer.heartbeat.interval.ms", kmsg.ConfigTypeInt, millis(o.Groups.ConsumerHeartbeatInterval), "5000", "The time between heartbeats of members of consumer groups."},
		{"group.consumer.max.size", kmsg.ConfigTypeInt, strconv.Itoa(o.Groups.ConsumerMaxSize), "2147483647", "The most members of a consumer group."},
		{"group.consumer.migration.policy", kmsg.ConfigTypeString, string(o.Groups.MigrationPolicy), "bidirectional", "Which groups with members may change between the classic and the consumer protocol."},
		{"group.consumer.session.timeout.ms", kmsg.ConfigTypeInt, millis(o.Groups.ConsumerSessionTimeout), "45000", "How long members of consumer groups may be silent."},
		{"group.initial.rebalance.delay.ms", kmsg.ConfigTypeInt, millis(max(o.Groups.InitialRebalanceDelay, 0)), "3000", "How long an empty group waits for more members."},
		{"group.max.session.timeout.ms", kmsg.ConfigTypeInt, millis(o.Groups.MaxSessionTimeout), "1800000", "The longest session timeout of a group member."},
		{"group.max.size", kmsg.ConfigTypeInt, strconv.Itoa(o.Groups.MaxSize), "2147483647", "The most members of a group."},
		{"group.min.session.timeout.ms", kmsg.ConfigTypeInt, millis(o.Groups.MinSessionTimeout), "6000", "The shortest session timeout of a group member."},
		// Kafka UI takes a broker without this one for a very old one, and then uses the AlterConfigs that replaces all.
		{"inter.broker.protocol.version", kmsg.ConfigTypeString, "4.0-IV3", "4.0-IV3", "The Kafka release that this broker is like."},
		{"listeners", kmsg.ConfigTypeString, listener, "PLAINTEXT://:9092", "The address that clients connect to."},
		{"log.cleanup.policy", kmsg.ConfigTypeList, "delete", "delete", "The default of cleanup.policy."},
		{"log.message.timestamp.type", kmsg.ConfigTypeString, "CreateTime", "CreateTime", "The default of message.timestamp.type."},
		{"log.retention.bytes", kmsg.ConfigTypeLong, strconv.FormatInt(o.DefaultRetentionBytes, 10), "-1", "The default of retention.bytes."},
		{"log.retention.hours", kmsg.ConfigTypeInt, retentionHours(retention), "168", "log.retention.ms in hours."},
		{"log.retention.ms", kmsg.ConfigTypeLong, retention, retentionMs(defaultRetention), "The default of retention.ms."},
		{"log.segment.bytes", kmsg.ConfigTypeInt, "1073741824", "1073741824", "Not used: the store chooses the size of its objects."},
		{"max.incremental.fetch.session.cache.slots", kmsg.ConfigTypeInt, strconv.Itoa(o.FetchSessionSlots), strconv.Itoa(defaultFetchSessions), "The most incremental fetch sessions."},
		{"message.max.bytes", kmsg.ConfigTypeInt, strconv.Itoa(o.MaxMessageBytes), strconv.Itoa(defaultMaxMessageBytes), "The default of max.message.bytes."},
		{"min.insync.replicas", kmsg.ConfigTypeInt, "1", "1", "Not used: the object store replicates."},
		{"node.id", kmsg.ConfigTypeInt, node, "-1", "The id of this broker."},
		{"num.partitions", kmsg.ConfigTypeInt, strconv.Itoa(int(o.DefaultPartitions)), "1", "The partitions of a topic that is created without a number."},
		{"offset.metadata.max.bytes", kmsg.ConfigTypeInt, strconv.Itoa(o.Groups.MaxOffsetMetadata), "4096", "The longest text that may be committed with an offset."},
		{"offsets.retention.check.interval.ms", kmsg.ConfigTypeLong, millis(o.Groups.CleanInterval), "600000", "How often expired offsets are looked for."},
		{"offsets.retention.minutes", kmsg.ConfigTypeInt, strconv.FormatInt(int64(o.Groups.OffsetRetention/time.Minute), 10), "10080", "How long offsets of an empty group are kept."},
		{"offsets.topic.num.partitions", kmsg.ConfigTypeInt, "50", "50", "Not used: offsets are not kept in a topic."},
		{"offsets.topic.replication.factor", kmsg.ConfigTypeShort, "1", "3", "Not used: offsets are not kept in a topic."},
		{"process.roles", kmsg.ConfigTypeList, "broker,controller", "", "What this node does."},
		{"transaction.max.timeout.ms", kmsg.ConfigTypeInt, "900000", "900000", "Not used: transactions are not served."},
		{"transaction.state.log.min.isr", kmsg.ConfigTypeInt, "1", "2", "Not used: transactions are not served."},
		{"transaction.state.log.num.partitions", kmsg.ConfigTypeInt, "50", "50", "Not used: transactions are not served."},
		{"transaction.state.log.replication.factor", kmsg.ConfigTypeShort, "1", "3", "Not used: transactions are not served."},
	}
	configs := make([]describedConfig, len(rows))
	for i, r := range rows {
		configs[i] = describedConfig{name: r.name, kind: r.kind, doc: r.doc, readOnly: true}
		if r.value != r.fallback {
			configs[i].values = append(configs[i].values, configSynonym{r.name, r.value, kmsg.ConfigSourceStaticBrokerConfig})
		}
		if r.fallback != "" || r.value == "" {
			configs[i].values = append(configs[i].values, configSynonym{r.name, r.fallback, kmsg.ConfigSourceDefaultConfig})
		}
	}
	return configs
}

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// retentionHours converts whole milliseconds to hours, rounded down.
func retentionHours(ms string) string {
	n, err := strconv.ParseInt(ms, 10, 64)
	if err != nil || n < 0 {
		return "-1"
	}
	return strconv.FormatInt(n/3_600_000, 10)
}
