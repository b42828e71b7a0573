package broker

import (
	"context"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// IncrementalAlterConfigs (key 44), v0 and v1 (KIP-339).
//
// Behaviour:
//   - Each entry sets a config, deletes it (back to its default), or appends to or subtracts from a list. Appending what
//     the list has already, and subtracting what it has not, changes nothing.
//   - All entries of one resource take effect or none; resources do not depend on each other.
//   - Retention is pushed to the topic's streams in the same transaction.
//   - Configs of the broker cannot be changed: INVALID_REQUEST. Only deleting them succeeds, since none is set: tools that
//     throttle replication clear their throttles that way, also if they never set any.
//
// Versions: 1 is flexible; nothing else changed.
func init() { register(kafkaproto.KeyIncrementalAlterConfigs, direct(handleIncrementalAlterConfigs)) }

func handleIncrementalAlterConfigs(b *Broker, ctx context.Context, r *kafkaproto.Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.IncrementalAlterConfigsRequest)
	resp := req.ResponseKind().(*kmsg.IncrementalAlterConfigsResponse)
	key := func(r *kmsg.IncrementalAlterConfigsRequestResource) resource {
		return resource{r.ResourceType, r.ResourceName}
	}
	items, errs := alterResources(b, ctx, req.Resources, key, req.ValidateOnly, b.editConfigs)
	for i, err := range errs {
		if b.onlyResetsBroker(items[i]) {
			err = nil
		}
		a := kmsg.NewIncrementalAlterConfigsResponseResource()
		a.ResourceType, a.ResourceName = items[i].ResourceType, items[i].ResourceName
		a.ErrorCode, a.ErrorMessage = errorFields(err)
		resp.Resources = append(resp.Resources, a)
	}
	return resp, nil
}

// onlyResetsBroker tells whether r deletes configs of this broker or of all brokers, and does nothing else.
func (b *Broker) onlyResetsBroker(r *kmsg.IncrementalAlterConfigsRequestResource) bool {
	if r.ResourceType != kmsg.ConfigResourceTypeBroker || r.ResourceName != "" && b.checkBrokerID(r.ResourceName) != nil {
		return false
	}
	for _, c := range r.Configs {
		if c.Op != kmsg.IncrementalAlterConfigOpDelete {
			return false
		}
	}
	return len(r.Configs) > 0
}

func (b *Broker) editConfigs(r *kmsg.IncrementalAlterConfigsRequestResource, overrides map[string]string) *kafkaproto.Error {
	edits := make([]configEdit, len(r.Configs))
	for i, c := range r.Configs {
		edits[i] = configEdit{name: c.Name, op: c.Op, value: c.Value}
	}
	if err := checkEdits(edits); err != nil {
		return err
	}
	defaults := b.topics.defaultsFor(r.ResourceName)
	for _, e := range edits {
		if err := e.apply(overrides, defaults); err != nil {
			return err
		}
	}
	return nil
}

// apply changes overrides as the entry says. The resulting values are checked later, all together.
func (e *configEdit) apply(overrides map[string]string, defaults *configDefaults) *kafkaproto.Error {
	switch e.op {
	case kmsg.IncrementalAlterConfigOpSet:
		overrides[e.name] = *e.value
		return nil
	case kmsg.IncrementalAlterConfigOpDelete:
		delete(overrides, e.name)
		return nil
	case kmsg.IncrementalAlterConfigOpAppend, kmsg.IncrementalAlterConfigOpSubtract:
		return e.applyList(overrides, defaults)
	}
	return kafkaproto.ErrInvalidRequest.WithMessage("unknown operation %d on config %s: it must be 0 (set), 1 (delete), 2 (append) or 3 (subtract)", int8(e.op), e.name)
}

func (e *configEdit) applyList(overrides map[string]string, defaults *configDefaults) *kafkaproto.Error {
	def, ok := defaults.def(e.name)
	if !ok {
		return errUnknownConfig(e.name)
	}
	if def.kind != kmsg.ConfigTypeList {
		return kafkaproto.ErrInvalidConfig.WithMessage("can't %v %s: it is not a list", e.op, e.name)
	}
	value, ok := overrides[e.name]
	if !ok {
		value = defaults.values[e.name]
	}
	list := splitList(value)
	for _, entry := range splitList(*e.value) {
		at := slices.Index(list, entry)
		switch {
		case e.op == kmsg.IncrementalAlterConfigOpAppend && at < 0:
			list = append(list, entry)
		case e.op == kmsg.IncrementalAlterConfigOpSubtract && at >= 0:
			list = slices.Delete(list, at, at+1)
		}
	}
	overrides[e.name] = strings.Join(list, ",")
	return nil
}
