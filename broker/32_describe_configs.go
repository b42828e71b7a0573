package broker

import (
	"context"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// DescribeConfigs (key 32), v0 to v4.
//
// Behaviour:
//   - Topics, and named streams by their name, report every config of topic_config.go, also at its default;
//     streams those of their own as well.
//   - A broker reports the configs of broker_config.go, all of them read-only. The empty name is the cluster-wide dynamic
//     defaults, of which there are none; any other name must be this broker's id.
//   - Loggers of this broker, subscriptions to client metrics and groups have no configs: the answer is an empty list for
//     every name that can be one of theirs, as Kafka does not ask either whether such a group or subscription exists.
//   - A resource that is named more than once is answered once, by its first naming.
//   - A null or empty list of names asks for all configs; names that do not exist are left out.
//   - Synonyms run from the value in effect to the default.
//
// Versions:
//
//	1  sources, synonyms (KIP-226)     3  types, documentation (KIP-569)
//
// v0 is served for Sarama, whose versions for Kafka 0.11 and 1.0 send it.
func init() { register(kafkaproto.KeyDescribeConfigs, direct(handleDescribeConfigs)) }

func handleDescribeConfigs(b *Broker, _ context.Context, r *kafkaproto.Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.DescribeConfigsRequest)
	resp := req.ResponseKind().(*kmsg.DescribeConfigsResponse)
	resources, _ := distinct(req.Resources, func(r *kmsg.DescribeConfigsRequestResource) resource {
		return resource{r.ResourceType, r.ResourceName}
	})
	for _, resource := range resources {
		a := kmsg.NewDescribeConfigsResponseResource()
		a.ResourceType, a.ResourceName = resource.ResourceType, resource.ResourceName
		configs, err := b.describeResource(resource)
		a.ErrorCode, a.ErrorMessage = errorFields(err)
		for _, c := range configs {
			if len(resource.ConfigNames) == 0 || slices.Contains(resource.ConfigNames, c.name) {
				a.Configs = append(a.Configs, c.reply(req))
			}
		}
		resp.Resources = append(resp.Resources, a)
	}
	return resp, nil
}

func (b *Broker) describeResource(r *kmsg.DescribeConfigsRequestResource) ([]describedConfig, *kafkaproto.Error) {
	switch r.ResourceType {
	case kmsg.ConfigResourceTypeTopic:
		return b.describeTopicConfigs(r.ResourceName)
	case kmsg.ConfigResourceTypeBroker:
		return b.describeBrokerConfigs(r.ResourceName)
	case kmsg.ConfigResourceTypeBrokerLogger:
		return nil, b.checkBrokerID(r.ResourceName)
	case kmsg.ConfigResourceTypeClientMetrics, kmsg.ConfigResourceTypeGroupConfig:
		if r.ResourceName == "" {
			return nil, kafkaproto.ErrInvalidRequest.WithMessage("the name of the resource is empty")
		}
		return nil, nil
	}
	return nil, kafkaproto.ErrInvalidRequest.WithMessage("unknown resource type %d", int8(r.ResourceType))
}

// describedConfig is one config in effect.
type describedConfig struct {
	name, doc string
	kind      kmsg.ConfigType
	readOnly  bool
	// values holds the value in effect and what would hold without it, each with its source.
	values []configSynonym
}

type configSynonym struct {
	name, value string
	source      kmsg.ConfigSource
}

func (b *Broker) describeTopicConfigs(name string) ([]describedConfig, *kafkaproto.Error) {
	t, err := b.topics.byName(name)
	if err != nil {
		return nil, err
	}
	config, err := b.topics.configOf(t)
	if err != nil {
		return nil, err
	}
	defs := config.defaults.defs()
	described := make([]describedConfig, len(defs))
	for i := range defs {
		described[i] = config.describe(&defs[i])
	}
	return described, nil
}

func (c *topicConfig) describe(def *configDef) describedConfig {
	d := describedConfig{name: def.name, doc: def.doc, kind: def.kind}
	if v, ok := c.overrides[def.name]; ok {
		d.values = append(d.values, configSynonym{def.name, v, kmsg.ConfigSourceDynamicTopicConfig})
	}
	synonym := def.synonym
	if synonym == "" {
		synonym = def.name
	}
	if c.defaults.static[def.name] {
		d.values = append(d.values, configSynonym{synonym, c.defaults.values[def.name], kmsg.ConfigSourceStaticBrokerConfig})
	}
	d.values = append(d.values, configSynonym{synonym, def.value, kmsg.ConfigSourceDefaultConfig})
	return d
}

func (b *Broker) describeBrokerConfigs(name string) ([]describedConfig, *kafkaproto.Error) {
	if name == "" {
		return nil, nil
	}
	if err := b.checkBrokerID(name); err != nil {
		return nil, err
	}
	return b.opts.brokerConfigs(), nil
}

func (b *Broker) checkBrokerID(name string) *kafkaproto.Error {
	if name != strconv.Itoa(int(b.opts.NodeID)) {
		return kafkaproto.ErrInvalidRequest.WithMessage("unexpected broker id %q: this broker's id is %d", name, b.opts.NodeID)
	}
	return nil
}

func (d *describedConfig) reply(req *kmsg.DescribeConfigsRequest) kmsg.DescribeConfigsResponseResourceConfig {
	c := kmsg.NewDescribeConfigsResponseResourceConfig()
	c.Name, c.ConfigType, c.ReadOnly = d.name, d.kind, d.readOnly
	c.Value = kmsg.StringPtr(d.values[0].value)
	c.Source = d.values[0].source
	c.IsDefault = c.Source == kmsg.ConfigSourceDefaultConfig
	if req.IncludeSynonyms {
		for _, v := range d.values {
			s := kmsg.NewDescribeConfigsResponseResourceConfigConfigSynonym()
			s.Name, s.Value, s.Source = v.name, kmsg.StringPtr(v.value), v.source
			c.ConfigSynonyms = append(c.ConfigSynonyms, s)
		}
	}
	if req.IncludeDocumentation {
		c.Documentation = kmsg.StringPtr(d.doc)
	}
	return c
}
