package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/kafkaproto/ext"
)

// ApiVersions (key 18), v0 to v5.
//
// Behaviour:
//   - The list is that of the registered handlers. A request that is too new is answered by kafkaproto.
//   - A client that believes it talks to another cluster or node (v5) is told to start over with REBOOTSTRAP_REQUIRED:
//     its address now leads to a different broker.
//   - Features are those of features.go.
//   - A tag announces Brooklet's own tagged fields (package ext).
//
// Versions:
//
//	3  client software, features (KIP-511, KIP-584)     5  cluster and node id (KIP-1242)
//	4  features with a minimum of 0 (KIP-1022)
//
// Left out on purpose: the pattern that names of client software must match (a client that breaks it loses nothing); keys
// 71 and 72, because clients that do not find them send no metrics of theirs (KIP-714).
func init() { register(kafkaproto.KeyApiVersions, direct(handleApiVersions)) }

func handleApiVersions(b *Broker, _ context.Context, r *kafkaproto.Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.ApiVersionsRequest)
	resp := req.ResponseKind().(*kmsg.ApiVersionsResponse)
	resp.ErrorCode, _ = errorFields(b.checkIdentity(req))
	resp.ApiKeys = b.versions.ApiKeys(req.Version)
	if req.Version >= 3 {
		b.addFeatures(resp)
		ext.SetVersion(&resp.UnknownTags)
	}
	return resp, nil
}

// checkIdentity compares the cluster and node that the client looks for with what it has found.
func (b *Broker) checkIdentity(req *kmsg.ApiVersionsRequest) *kafkaproto.Error {
	if req.Version < 5 || req.ClusterID == nil && req.NodeID == -1 {
		return nil
	}
	if req.ClusterID == nil || req.NodeID == -1 {
		return kafkaproto.ErrInvalidRequest
	}
	if *req.ClusterID != b.clusterID || req.NodeID != b.opts.NodeID {
		return kafkaproto.ErrRebootstrapRequired
	}
	return nil
}
