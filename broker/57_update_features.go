package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// UpdateFeatures (key 57), v0 to v2 (KIP-584).
//
// Behaviour:
//   - Levels of features come with the release of the broker. Setting one to the level that it has succeeds, all else is
//     INVALID_UPDATE_VERSION.
//   - All updates of a request succeed or none. Below v2 success is told per feature, failure always at the top.
//
// Versions:
//
//	1  validate only, upgrade type (KIP-778)     2  no results per feature (KIP-1022)
func init() { register(kafkaproto.KeyUpdateFeatures, direct(handleUpdateFeatures)) }

func handleUpdateFeatures(b *Broker, _ context.Context, r *kafkaproto.Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.UpdateFeaturesRequest)
	resp := req.ResponseKind().(*kmsg.UpdateFeaturesResponse)
	for i := range req.FeatureUpdates {
		if err := b.checkFeatureUpdate(&req.FeatureUpdates[i]); err != nil {
			resp.Results = nil
			resp.ErrorCode, resp.ErrorMessage = errorFields(err)
			return resp, nil
		}
		result := kmsg.NewUpdateFeaturesResponseResult()
		result.Feature = req.FeatureUpdates[i].Feature
		resp.Results = append(resp.Results, result)
	}
	return resp, nil
}

func (b *Broker) checkFeatureUpdate(u *kmsg.UpdateFeaturesRequestFeatureUpdate) *kafkaproto.Error {
	for _, f := range b.features() {
		if f.name != u.Feature {
			continue
		}
		if u.MaxVersionLevel == f.level {
			return nil
		}
		return errInvalidUpdateVersion.WithMessage("feature %s stays at level %d, which comes with the release of the broker; level %d cannot be set", f.name, f.level, u.MaxVersionLevel)
	}
	return errInvalidUpdateVersion.WithMessage("this broker has no feature %q", u.Feature)
}
