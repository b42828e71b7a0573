package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// resource names what AlterConfigs and IncrementalAlterConfigs change.
type resource struct {
	kind kmsg.ConfigResourceType
	name string
}

// A configEdit is one entry of a request that changes configs.
type configEdit struct {
	name  string
	op    kmsg.IncrementalAlterConfigOp
	value *string
}

// alterResources carries out one request. apply makes the changes of one resource to a copy of what is set on it now. The
// result holds each resource once, and its error or nil.
func alterResources[T any](b *Broker, ctx context.Context, all []T, key func(*T) resource, dryRun bool, apply func(item *T, overrides map[string]string) *kafkaproto.Error) ([]*T, []*kafkaproto.Error) {
	items, repeated := distinct(all, key)
	alterations := make([]alteration, len(items))
	checked := make([]*kafkaproto.Error, len(items))
	for i, item := range items {
		k := key(item)
		checked[i] = checkAlterable(k)
		if repeated[k] {
			checked[i] = errRepeated(k.name)
		}
		alterations[i] = alteration{name: k.name, fn: func(overrides map[string]string) *kafkaproto.Error { return apply(item, overrides) }}
	}
	ctx, cancel := adminContext(ctx, 0) // these requests carry no time of their own
	defer cancel()
	return items, b.topics.alter(ctx, alterations, checked, dryRun)
}

// checkAlterable tells whether configs of this resource can be changed at all.
func checkAlterable(r resource) *kafkaproto.Error {
	switch {
	case r.kind == kmsg.ConfigResourceTypeBroker:
		return kafkaproto.ErrInvalidRequest.WithMessage("configs of the broker cannot be changed while it runs: set them when it is started")
	case r.kind != kmsg.ConfigResourceTypeTopic:
		return kafkaproto.ErrInvalidRequest.WithMessage("configs of resource type %d (%v) cannot be changed here: only those of topics can", int8(r.kind), r.kind)
	case r.name == "":
		return kafkaproto.ErrInvalidRequest.WithMessage("topic name is empty: there are no cluster-wide topic configs")
	}
	return nil
}

// checkEdits checks that each config is named once and that a value is given where one is needed.
func checkEdits(edits []configEdit) *kafkaproto.Error {
	seen := make(map[string]bool, len(edits))
	for _, e := range edits {
		if seen[e.name] {
			return kafkaproto.ErrInvalidRequest.WithMessage("config %s is named more than once", e.name)
		}
		seen[e.name] = true
		if e.value == nil && e.op != kmsg.IncrementalAlterConfigOpDelete {
			return kafkaproto.ErrInvalidRequest.WithMessage("Null value not supported for : %s", e.name)
		}
	}
	return nil
}
