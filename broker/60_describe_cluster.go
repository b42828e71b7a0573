package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// DescribeCluster (key 60), v0 to v2.
//
// Behaviour: this broker is the cluster and its controller. It is an endpoint for brokers; a client that wants to talk to
// a controller directly is refused, as by a Kafka broker.
//
// Versions:
//
//	0  KIP-700     1  endpoint type (KIP-919)     2  fenced brokers (KIP-1073), of which there are none
func init() { register(kafkaproto.KeyDescribeCluster, direct(handleDescribeCluster)) }

// Endpoint types of KIP-919.
const (
	endpointBrokers     = 1
	endpointControllers = 2
)

func handleDescribeCluster(b *Broker, _ context.Context, r *kafkaproto.Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.DescribeClusterRequest)
	resp := req.ResponseKind().(*kmsg.DescribeClusterResponse)
	if err := checkEndpointType(req); err != nil {
		resp.ErrorCode, resp.ErrorMessage = errorFields(err)
		return resp, nil
	}
	n := kmsg.NewDescribeClusterResponseBroker()
	n.NodeID, n.Host, n.Port, n.Rack = b.opts.NodeID, b.opts.AdvertisedHost, b.opts.AdvertisedPort, b.rack()
	resp.Brokers = append(resp.Brokers, n)
	resp.ClusterID, resp.ControllerID = b.clusterID, b.opts.NodeID
	if req.IncludeClusterAuthorizedOperations {
		resp.ClusterAuthorizedOperations = clusterOperations
	}
	return resp, nil
}

func checkEndpointType(req *kmsg.DescribeClusterRequest) *kafkaproto.Error {
	if req.Version < 1 {
		return nil
	}
	switch req.EndpointType {
	case endpointBrokers:
		return nil
	case endpointControllers:
		return errMismatchedEndpointType
	}
	return errUnsupportedEndpointType
}
