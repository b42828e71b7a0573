package broker

import (
	"context"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// ListConfigResources (key 74), v0 and v1.
//
// Behaviour:
//   - The names of what DescribeConfigs can be asked for: topics (not named streams), this broker, and this broker again for
//     its loggers. No client metrics are subscribed to. As in Kafka a group is listed if it has configs of its own, which
//     none has.
//   - No types ask for all of them. A type that does not exist is UNSUPPORTED_VERSION.
//
// Versions:
//
//	0  client metrics only (KIP-714)     1  all types (KIP-1142)
func init() { register(kafkaproto.KeyListConfigResources, direct(handleListConfigResources)) }

// configResourceTypes are the types of resources that have configs in Kafka.
var configResourceTypes = []kmsg.ConfigResourceType{
	kmsg.ConfigResourceTypeTopic, kmsg.ConfigResourceTypeBroker, kmsg.ConfigResourceTypeBrokerLogger,
	kmsg.ConfigResourceTypeClientMetrics, kmsg.ConfigResourceTypeGroupConfig,
}

func handleListConfigResources(b *Broker, _ context.Context, r *kafkaproto.Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.ListConfigResourcesRequest)
	resp := req.ResponseKind().(*kmsg.ListConfigResourcesResponse)
	if req.Version == 0 {
		return resp, nil
	}
	for _, asked := range req.ResourceTypes {
		if !slices.Contains(configResourceTypes, kmsg.ConfigResourceType(asked)) {
			resp.ErrorCode = kafkaproto.ErrUnsupportedVersion.Code
			return resp, nil
		}
	}
	for _, kind := range configResourceTypes {
		if len(req.ResourceTypes) > 0 && !slices.Contains(req.ResourceTypes, int8(kind)) {
			continue
		}
		for _, name := range b.configResources(kind) {
			c := kmsg.NewListConfigResourcesResponseConfigResource()
			c.Name, c.Type = name, int8(kind)
			resp.ConfigResources = append(resp.ConfigResources, c)
		}
	}
	return resp, nil
}

func (b *Broker) configResources(kind kmsg.ConfigResourceType) []string {
	switch kind {
	case kmsg.ConfigResourceTypeTopic:
		return b.topics.load().names()
	case kmsg.ConfigResourceTypeBroker, kmsg.ConfigResourceTypeBrokerLogger:
		return []string{strconv.Itoa(int(b.opts.NodeID))}
	}
	return nil
}
