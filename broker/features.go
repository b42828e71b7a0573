package broker

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// feature is one feature of the cluster, as ApiVersions reports it (KIP-584).
type feature struct {
	name string
	// min and max are the levels that are supported, level is the one in effect.
	min, max, level int16
	// key is the API that the feature turns on: without it the feature is not there.
	key int16
}

// clusterFeatures lists all features that this broker may have, in order of names.
//
// metadata.version tells tools which release of Kafka they talk to, and nothing else hangs on it here. Level 25 is
// 4.0-IV3, as inter.broker.protocol.version says; level 7, 3.3-IV3, is the least that Kafka 4.0 knows.
//
// transaction.version is left out: a client that sees level 2 would use the protocol of KIP-890.
var clusterFeatures = []feature{
	{name: "group.version", max: 1, level: 1, key: int16(kmsg.ConsumerGroupHeartbeat)},
	{name: "metadata.version", min: 7, max: 25, level: 25, key: kafkaproto.KeyApiVersions},
}

// featuresEpoch is the version of the levels in effect. They never change while a broker runs; -1 would tell clients
// that the levels are unknown.
const featuresEpoch = 0

// features returns the features that are there.
func (b *Broker) features() []feature {
	var there []feature
	for _, f := range clusterFeatures {
		if _, _, ok := b.versions.Range(f.key); ok {
			there = append(there, f)
		}
	}
	return there
}

// addFeatures fills the features into a reply of version 3 or newer. Older clients take a minimum of 0 for malformed, so
// such features are shown from version 4 on (KIP-1022).
func (b *Broker) addFeatures(resp *kmsg.ApiVersionsResponse) {
	resp.FinalizedFeaturesEpoch = featuresEpoch
	for _, f := range b.features() {
		if f.min > 0 || resp.Version >= 4 {
			s := kmsg.NewApiVersionsResponseSupportedFeature()
			s.Name, s.MinVersion, s.MaxVersion = f.name, f.min, f.max
			resp.SupportedFeatures = append(resp.SupportedFeatures, s)
		}
		l := kmsg.NewApiVersionsResponseFinalizedFeature()
		l.Name, l.MinVersionLevel, l.MaxVersionLevel = f.name, f.level, f.level
		resp.FinalizedFeatures = append(resp.FinalizedFeatures, l)
	}
}
