package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// AlterConfigs (key 33), v0 to v2.
//
// Behaviour:
//   - The configs given replace all that were set on the topic; what is not named goes back to its default. Older tools
//     use this request; IncrementalAlterConfigs is the better one.
//   - Retention is pushed to the topic's streams in the same transaction.
//   - Configs of the broker cannot be changed: INVALID_REQUEST.
//
// Versions: 2 is flexible; nothing else changed.
func init() { register(kafkaproto.KeyAlterConfigs, direct(handleAlterConfigs)) }

func handleAlterConfigs(b *Broker, ctx context.Context, r *kafkaproto.Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.AlterConfigsRequest)
	resp := req.ResponseKind().(*kmsg.AlterConfigsResponse)
	key := func(r *kmsg.AlterConfigsRequestResource) resource { return resource{r.ResourceType, r.ResourceName} }
	items, errs := alterResources(b, ctx, req.Resources, key, req.ValidateOnly, replaceConfigs)
	for i, err := range errs {
		a := kmsg.NewAlterConfigsResponseResource()
		a.ResourceType, a.ResourceName = items[i].ResourceType, items[i].ResourceName
		a.ErrorCode, a.ErrorMessage = errorFields(err)
		resp.Resources = append(resp.Resources, a)
	}
	return resp, nil
}

func replaceConfigs(r *kmsg.AlterConfigsRequestResource, overrides map[string]string) *kafkaproto.Error {
	edits := make([]configEdit, len(r.Configs))
	for i, c := range r.Configs {
		edits[i] = configEdit{name: c.Name, value: c.Value}
	}
	if err := checkEdits(edits); err != nil {
		return err
	}
	clear(overrides)
	for _, e := range edits {
		overrides[e.name] = *e.value
	}
	return nil
}
