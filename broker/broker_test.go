package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/streamstore"
)

// What is advertised is what is registered, and kmsg knows all of it.
func TestApiVersionsIsTheRegister(t *testing.T) {
	b := newAdminBroker(t, nil)
	for version := int16(0); version <= 5; version++ {
		req := kmsg.NewPtrApiVersionsRequest()
		resp := ask[*kmsg.ApiVersionsResponse](b, version, req)
		wantCode(t, fmt.Sprintf("v%d", version), resp.ErrorCode, nil)
		var keys []int16
		for _, k := range resp.ApiKeys {
			keys = append(keys, k.ApiKey)
			if known := kmsg.RequestForKey(k.ApiKey); k.MinVersion < 0 || k.MaxVersion < k.MinVersion || k.MaxVersion > known.MaxVersion() {
				t.Errorf("%s: versions %d to %d, kmsg knows up to %d", kmsg.NameForKey(k.ApiKey), k.MinVersion, k.MaxVersion, known.MaxVersion())
			}
		}
		if !slices.Equal(keys, ServedKeys()) {
			t.Errorf("v%d advertises %v, registered are %v", version, keys, ServedKeys())
		}
	}
	for _, key := range []int16{3, 10, 18, 19, 20, 22, 32, 33, 35, 37, 44, 60, 75} {
		if !slices.Contains(ServedKeys(), key) {
			t.Errorf("%s is not served", kmsg.NameForKey(key))
		}
	}
}

// Tools show the features. A client must find transaction.version nowhere, and group.version with the API that it stands
// for only.
func TestApiVersionsFeatures(t *testing.T) {
	b := newAdminBroker(t, nil)
	newGroups := slices.Contains(ServedKeys(), int16(kmsg.ConsumerGroupHeartbeat))
	for version := int16(0); version <= 5; version++ {
		resp := ask[*kmsg.ApiVersionsResponse](b, version, kmsg.NewPtrApiVersionsRequest())
		if version < 3 {
			continue // there is no room for features
		}
		var supported, finalized []string
		for _, f := range resp.SupportedFeatures {
			if f.MinVersion == 0 && version < 4 || f.MinVersion > f.MaxVersion {
				t.Errorf("v%d: %s is supported from %d to %d", version, f.Name, f.MinVersion, f.MaxVersion)
			}
			supported = append(supported, f.Name)
		}
		for _, f := range resp.FinalizedFeatures {
			if f.MinVersionLevel < 1 || f.MinVersionLevel != f.MaxVersionLevel {
				t.Errorf("v%d: levels %d to %d of %s", version, f.MinVersionLevel, f.MaxVersionLevel, f.Name)
			}
			finalized = append(finalized, f.Name)
		}
		want := []string{"metadata.version"}
		if newGroups {
			want = []string{"group.version", "metadata.version"}
		}
		if resp.FinalizedFeaturesEpoch < 0 || !slices.Equal(finalized, want) || version >= 4 && !slices.Equal(supported, want) {
			t.Errorf("v%d: supported %v, finalized %v at epoch %d", version, supported, finalized, resp.FinalizedFeaturesEpoch)
		}
	}
}

// A client that looks for another cluster or node must start over (KIP-1242).
func TestApiVersionsIdentity(t *testing.T) {
	b := newAdminBroker(t, nil)
	mine := b.ClusterID()
	for _, tc := range []struct {
		cluster string
		node    int32
		want    *kafkaproto.Error
	}{
		{"", -1, nil},
		{mine, 1, nil},
		{mine, -1, kafkaproto.ErrInvalidRequest},
		{"", 1, kafkaproto.ErrInvalidRequest},
		{mine, 2, kafkaproto.ErrRebootstrapRequired},
		{"another", 1, kafkaproto.ErrRebootstrapRequired},
	} {
		req := kmsg.NewPtrApiVersionsRequest()
		if req.NodeID = tc.node; tc.cluster != "" {
			req.ClusterID = &tc.cluster
		}
		wantCode(t, fmt.Sprintf("%+v", tc), ask[*kmsg.ApiVersionsResponse](b, 5, req).ErrorCode, tc.want)
	}
}

// Every API answers an empty request in all its versions: nothing may depend on a list having entries.
func TestEmptyRequests(t *testing.T) {
	b := newAdminBroker(t, nil)
	for _, key := range ServedKeys() {
		low, high, _ := b.Versions().Range(key)
		for version := low; version <= high; version++ {
			req := kmsg.RequestForKey(key)
			req.SetVersion(version)
			if d, ok := req.(interface{ Default() }); ok {
				d.Default()
			}
			reply, err := b.Handle(context.Background(), &kafkaproto.Request{Conn: &kafkaproto.ConnInfo{}, Key: key, Version: version, Body: req})
			if err != nil {
				t.Errorf("%s v%d: %v", kmsg.NameForKey(key), version, err)
				continue
			}
			if reply == nil { // Produce with acks=0
				continue
			}
			resp, err := reply(context.Background())
			if err != nil || resp.Key() != key || resp.GetVersion() != version {
				t.Errorf("%s v%d: reply %T, %v", kmsg.NameForKey(key), version, resp, err)
			}
		}
	}
}

// FuzzHandlers gives any request that kmsg can read to its handler, which must answer with a reply that can be written, or
// with an error, and must not panic. Requests that change topics are only validated, so that the broker stays small.
func FuzzHandlers(f *testing.F) {
	for _, key := range ServedKeys() {
		versions, err := kafkaproto.NewVersions(ServedKeys()...)
		if err != nil {
			f.Fatal(err)
		}
		low, high, _ := versions.Range(key)
		for _, version := range []int16{low, high} {
			req := kmsg.RequestForKey(key)
			req.SetVersion(version)
			f.Add(key, version, req.AppendTo(nil))
		}
	}
	b := newAdminBroker(f, func(o *Options) { o.AutoCreateTopics = false })
	b.mustCreate("orders", 2)
	b.mustCreate("dir/stream", 1)
	ended, cancel := context.WithCancel(context.Background())
	cancel() // replies that wait give up
	f.Fuzz(func(t *testing.T, key, version int16, body []byte) {
		low, high, ok := b.Versions().Range(key)
		if !ok || version < low || version > high {
			return
		}
		req := kmsg.RequestForKey(key)
		req.SetVersion(version)
		if req.ReadFrom(body) != nil {
			return
		}
		switch req := req.(type) {
		case *kmsg.CreateTopicsRequest:
			req.ValidateOnly = true
		case *kmsg.CreatePartitionsRequest:
			req.ValidateOnly = true
		}
		reply, err := b.Handle(context.Background(), &kafkaproto.Request{Conn: &kafkaproto.ConnInfo{}, Key: key, Version: version, Body: req})
		if err != nil || reply == nil {
			return
		}
		if resp, err := reply(ended); err == nil {
			resp.AppendTo(nil)
		}
	})
}

func TestHandleRefusesUnknownKey(t *testing.T) {
	b := newAdminBroker(t, nil)
	if _, err := b.Handle(context.Background(), &kafkaproto.Request{Key: 4}); err == nil {
		t.Error("no error")
	}
}

func TestRegisterTwicePanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	register(kafkaproto.KeyMetadata, nil)
}

func TestFindCoordinator(t *testing.T) {
	b := newAdminBroker(t, nil)
	for version := int16(0); version <= 6; version++ {
		for kind, want := range map[int8]*kafkaproto.Error{0: nil, 1: kafkaproto.ErrInvalidRequest, 2: kafkaproto.ErrInvalidRequest, 9: kafkaproto.ErrInvalidRequest} {
			if version == 0 && kind != 0 {
				continue
			}
			req := kmsg.NewPtrFindCoordinatorRequest()
			req.CoordinatorKey, req.CoordinatorKeys, req.CoordinatorType = "g1", []string{"g1", "g2"}, kind
			resp := ask[*kmsg.FindCoordinatorResponse](b, version, req)
			answers := resp.Coordinators
			if version < 4 {
				answers = []kmsg.FindCoordinatorResponseCoordinator{{Key: "g1", NodeID: resp.NodeID, Host: resp.Host, Port: resp.Port, ErrorCode: resp.ErrorCode}}
			} else if len(answers) != 2 || answers[1].Key != "g2" {
				t.Fatalf("v%d: %+v", version, resp)
			}
			for _, a := range answers {
				wantCode(t, fmt.Sprintf("v%d type %d", version, kind), a.ErrorCode, want)
				if want == nil && (a.NodeID != 1 || a.Host != "broker.test" || a.Port != 9092) {
					t.Errorf("v%d: %+v", version, a)
				}
				if want != nil && a.NodeID != -1 {
					t.Errorf("v%d: failed, but node %d", version, a.NodeID)
				}
			}
		}
	}
}

func TestDescribeCluster(t *testing.T) {
	b := newAdminBroker(t, func(o *Options) { o.NodeID = 4 })
	for version := int16(0); version <= 2; version++ {
		req := kmsg.NewPtrDescribeClusterRequest()
		resp := ask[*kmsg.DescribeClusterResponse](b, version, req)
		if resp.ErrorCode != 0 || resp.ClusterID != b.ClusterID() || resp.ControllerID != 4 || len(resp.Brokers) != 1 || resp.Brokers[0].NodeID != 4 || resp.Brokers[0].Host != "broker.test" || resp.Brokers[0].Rack != nil {
			t.Errorf("v%d: %+v", version, resp)
		}
		req.IncludeClusterAuthorizedOperations = true
		if got := ask[*kmsg.DescribeClusterResponse](b, version, req).ClusterAuthorizedOperations; got != clusterOperations {
			t.Errorf("v%d: operations %d", version, got)
		}
	}
	for kind, want := range map[int8]*kafkaproto.Error{1: nil, 2: errMismatchedEndpointType, 3: errUnsupportedEndpointType} {
		req := kmsg.NewPtrDescribeClusterRequest()
		req.EndpointType = kind
		wantCode(t, fmt.Sprint("endpoint type ", kind), ask[*kmsg.DescribeClusterResponse](b, 1, req).ErrorCode, want)
	}
}

func TestInitProducerID(t *testing.T) {
	b := newAdminBroker(t, nil)
	for _, tc := range []struct {
		what    string
		version int16
		txn     *string
		id      int64
		epoch   int16
		want    *kafkaproto.Error
	}{
		{what: "v0", version: 0, id: -1, epoch: -1},
		{what: "v5", version: 5, id: -1, epoch: -1},
		{what: "with an old id", version: 3, id: 7, epoch: 2},
		{what: "id without epoch", version: 3, id: 7, epoch: -1, want: kafkaproto.ErrInvalidRequest},
		{what: "epoch without id", version: 5, id: -1, epoch: 0, want: kafkaproto.ErrInvalidRequest},
		{what: "empty transactional id", version: 2, txn: kmsg.StringPtr(""), id: -1, epoch: -1, want: kafkaproto.ErrInvalidRequest},
		{what: "transactional id", version: 4, txn: kmsg.StringPtr("t"), id: -1, epoch: -1, want: kafkaproto.ErrInvalidRequest},
	} {
		req := kmsg.NewPtrInitProducerIDRequest()
		req.TransactionalID, req.ProducerID, req.ProducerEpoch = tc.txn, tc.id, tc.epoch
		resp := ask[*kmsg.InitProducerIDResponse](b, tc.version, req)
		wantCode(t, tc.what, resp.ErrorCode, tc.want)
		if ok := resp.ProducerID >= 0 && resp.ProducerEpoch == 0; ok != (tc.want == nil) {
			t.Errorf("%s: id %d, epoch %d", tc.what, resp.ProducerID, resp.ProducerEpoch)
		}
		if tc.id >= 0 && resp.ProducerID == tc.id && tc.want == nil {
			t.Errorf("%s: the old id came back", tc.what)
		}
	}
}

// Producer ids are never handed out twice, whatever callers run together and whenever the broker stops.
func TestProducerIDsAreNeverReused(t *testing.T) {
	m := newMachine()
	var mu sync.Mutex
	seen := map[int64]bool{}
	for range 3 {
		b := m.open(t, nil)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 600 {
					id, err := b.producers.allocate(context.Background())
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					if seen[id] {
						t.Errorf("id %d came twice", id)
					}
					seen[id] = true
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		b.stop()
	}
	if len(seen) != 3*4*600 {
		t.Errorf("%d different ids", len(seen))
	}
}

// An unreadable row must stop the hand-out: starting again at zero would give ids that are in use.
func TestProducerIDRowIsChecked(t *testing.T) {
	b := newAdminBroker(t, nil)
	for _, bad := range []string{"", "1234567", "\xff\xff\xff\xff\xff\xff\xff\xff", "\x7f\xff\xff\xff\xff\xff\xff\xff"} {
		txn := streamstore.NewTxn()
		txn.Set([]byte(nextProducerID), []byte(bad))
		if _, err := b.store.Commit(context.Background(), txn); err != nil {
			t.Fatal(err)
		}
		if id, err := b.producers.allocate(context.Background()); !errors.Is(err, errBadRow) {
			t.Errorf("row %q: id %d, error %v", bad, id, err)
		}
	}
	resp := ask[*kmsg.InitProducerIDResponse](b, 3, kmsg.NewPtrInitProducerIDRequest())
	wantCode(t, "request", resp.ErrorCode, kafkaproto.ErrCoordinatorLoadInProgress)
}

func TestTransactionsAreWarnedOfOnce(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	b := newAdminBroker(t, func(o *Options) { o.Logger = zap.New(core) })
	for range 3 {
		req := kmsg.NewPtrInitProducerIDRequest()
		req.TransactionalID = kmsg.StringPtr("t")
		ask[*kmsg.InitProducerIDResponse](b, 1, req)
	}
	if logs.Len() != 1 {
		t.Errorf("%d log lines", logs.Len())
	}
}

func TestOptionsReportEverythingAtOnce(t *testing.T) {
	o := Options{NodeID: -1, DefaultPartitions: -1, MaxMessageBytes: -1, AdvertisedPort: 70000, DefaultRetention: time.Microsecond}
	o.EnsureDefaults()
	err := o.Validate()
	if err == nil {
		t.Fatal("no error")
	}
	for _, field := range []string{"Store", "NodeID", "AdvertisedHost", "AdvertisedPort", "DefaultPartitions", "MaxMessageBytes", "DefaultRetention"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%s is missing: %v", field, err)
		}
	}
}

func TestStoreErrors(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want *kafkaproto.Error
	}{
		{nil, nil},
		{fmt.Errorf("x: %w", streamstore.ErrNoStream), kafkaproto.ErrUnknownTopicOrPartition},
		{fmt.Errorf("x: %w", streamstore.ErrBackpressure), kafkaproto.ErrNotEnoughReplicas},
		{streamstore.ErrFenced, kafkaproto.ErrNotLeaderOrFollower},
		{&streamstore.CorruptError{}, kafkaproto.ErrKafkaStorageError},
		{context.DeadlineExceeded, kafkaproto.ErrRequestTimedOut},
		{fmt.Errorf("x: %w", kafkaproto.ErrInvalidTimestamp), kafkaproto.ErrInvalidTimestamp},
		{errors.New("surprise"), kafkaproto.ErrUnknownServerError},
	} {
		got := storeError(tc.err)
		wantCode(t, fmt.Sprint(tc.err), kafkaproto.CodeOf(asError(got)), tc.want)
	}
	for _, m := range storeErrors {
		if _, message := errorFields(m.kafka); *message == "" {
			t.Errorf("%v has no message for clients", m.err)
		}
	}
	// What the store says about retrying must be what clients do.
	for _, err := range []error{streamstore.ErrBackpressure, streamstore.ErrFenced, streamstore.ErrFailed, streamstore.ErrClosed, context.DeadlineExceeded} {
		if !storeError(err).Retriable {
			t.Errorf("%v is not retried", err)
		}
	}
}

func get(t *testing.T, h http.Handler, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	body, err := io.ReadAll(w.Result().Body)
	if err != nil {
		t.Fatal(err)
	}
	return w.Code, string(body)
}

func TestAdminHandler(t *testing.T) {
	b := newAdminBroker(t, nil)
	b.mustCreate("secret-topic-name", 1)
	b.mustCreate("secret/stream", 1)
	h := NewAdminHandler(b.Ready, b.reg)
	for path, want := range map[string]string{"/healthz": "ok", "/readyz": "ready"} {
		if code, body := get(t, h, path); code != 200 || strings.TrimSpace(body) != want {
			t.Errorf("%s: %d %q", path, code, body)
		}
	}
	code, body := get(t, h, "/metrics")
	if code != 200 || !strings.Contains(body, "brooklet_broker_topics 1") || !strings.Contains(body, `brooklet_broker_streams_created_total{cause="request"} 1`) {
		t.Errorf("metrics: %d %s", code, body)
	}
	if strings.Contains(body, "secret") {
		t.Error("metrics carry names of topics or streams")
	}
	if code, _ := get(t, h, "/other"); code != 404 {
		t.Errorf("other path: %d", code)
	}
	b.Drain()
	b.Drain()
	if code, body := get(t, h, "/readyz"); code != 503 || !strings.Contains(body, "draining") {
		t.Errorf("while draining: %d %q", code, body)
	}
	if code, _ := get(t, h, "/healthz"); code != 200 {
		t.Errorf("draining process is not healthy: %d", code)
	}
}

func TestNotReadyWhenStoreHasStopped(t *testing.T) {
	b := newAdminBroker(t, nil)
	b.stop()
	if err := b.Ready(); !errors.Is(err, streamstore.ErrClosed) {
		t.Errorf("ready: %v", err)
	}
}
