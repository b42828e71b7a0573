package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/tests/harness"
)

const (
	sessionTimeout = 6 * time.Second // the shortest that is allowed
	groupTopic     = "grouped"
)

// rawMember is a member of a group whose requests are sent one by one.
type rawMember struct {
	t              *testing.T
	c              *harness.Conn
	group, id      string
	instance       *string
	generation     int32
	leader         bool
	joined         *kmsg.JoinGroupResponse // the last
	protocol       string
	sessionTimeout time.Duration
}

func newRawMember(t *testing.T, b *harness.Broker, group string) *rawMember {
	t.Helper()
	return &rawMember{t: t, c: harness.Dial(t, b.Addr), group: group, protocol: "range", sessionTimeout: sessionTimeout}
}

func (m *rawMember) joinRequest() *kmsg.JoinGroupRequest {
	req := kmsg.NewPtrJoinGroupRequest()
	req.Version = 9
	req.Group, req.MemberID, req.InstanceID = m.group, m.id, m.instance
	req.SessionTimeoutMillis = int32(m.sessionTimeout.Milliseconds())
	req.RebalanceTimeoutMillis = int32(stepTimeout.Milliseconds())
	req.ProtocolType = "consumer"
	p := kmsg.NewJoinGroupRequestProtocol()
	p.Name, p.Metadata = m.protocol, []byte("metadata of "+m.protocol)
	req.Protocols = append(req.Protocols, p)
	return req
}

// join joins, with a member id as it gets it, and returns the error.
func (m *rawMember) join() error {
	m.t.Helper()
	for {
		resp := harness.Do[*kmsg.JoinGroupResponse](m.c, m.joinRequest())
		err := kerr.ErrorForCode(resp.ErrorCode)
		if errors.Is(err, kerr.MemberIDRequired) {
			m.id = resp.MemberID
			continue
		}
		if err == nil {
			m.joined, m.id, m.generation, m.leader = resp, resp.MemberID, resp.Generation, resp.LeaderID == resp.MemberID
		}
		return err
	}
}

func (m *rawMember) syncRequest() *kmsg.SyncGroupRequest {
	req := kmsg.NewPtrSyncGroupRequest()
	req.Version = 5
	req.Group, req.MemberID, req.InstanceID, req.Generation = m.group, m.id, m.instance, m.generation
	req.ProtocolType, req.Protocol = kmsg.StringPtr("consumer"), &m.protocol
	return req
}

// sync gives each member, if this one is the leader, its id as its assignment, and returns its own.
func (m *rawMember) sync() (assignment []byte, err error) {
	m.t.Helper()
	req := m.syncRequest()
	if m.leader {
		for _, member := range m.joined.Members {
			a := kmsg.NewSyncGroupRequestGroupAssignment()
			a.MemberID, a.MemberAssignment = member.MemberID, []byte(member.MemberID)
			req.GroupAssignment = append(req.GroupAssignment, a)
		}
	}
	resp := harness.Do[*kmsg.SyncGroupResponse](m.c, req)
	return resp.MemberAssignment, kerr.ErrorForCode(resp.ErrorCode)
}

func (m *rawMember) heartbeatRequest() *kmsg.HeartbeatRequest {
	req := kmsg.NewPtrHeartbeatRequest()
	req.Version = 4
	req.Group, req.MemberID, req.InstanceID, req.Generation = m.group, m.id, m.instance, m.generation
	return req
}

func (m *rawMember) heartbeat() error {
	m.t.Helper()
	return kerr.ErrorForCode(harness.Do[*kmsg.HeartbeatResponse](m.c, m.heartbeatRequest()).ErrorCode)
}

func (m *rawMember) commitRequest(offset int64, metadata string) *kmsg.OffsetCommitRequest {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Version = 9
	req.Group, req.MemberID, req.InstanceID, req.Generation = m.group, m.id, m.instance, m.generation
	rt := kmsg.NewOffsetCommitRequestTopic()
	rt.Topic = groupTopic
	rp := kmsg.NewOffsetCommitRequestTopicPartition()
	rp.Offset, rp.Metadata = offset, &metadata
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	return req
}

func (m *rawMember) commit(offset int64, metadata string) error {
	m.t.Helper()
	resp := harness.Do[*kmsg.OffsetCommitResponse](m.c, m.commitRequest(offset, metadata))
	return kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode)
}

// committed returns the offset that a group has committed, -1 for none.
func committed(c *harness.Conn, group string) int64 {
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Version = 7
	req.Group = group
	rt := kmsg.NewOffsetFetchRequestTopic()
	rt.Topic, rt.Partitions = groupTopic, []int32{0}
	req.Topics = append(req.Topics, rt)
	return harness.Do[*kmsg.OffsetFetchResponse](c, req).Topics[0].Partitions[0].Offset
}

// newRawGroup returns the members of a group that is stable.
func newRawGroup(t *testing.T, b *harness.Broker, group string, n int, opts ...func(*rawMember)) []*rawMember {
	t.Helper()
	members := make([]*rawMember, n)
	for i := range members {
		members[i] = newRawMember(t, b, group)
		for _, opt := range opts {
			opt(members[i])
		}
	}
	each := func(do func(*rawMember) error) {
		t.Helper()
		errs := make([]error, n)
		var done sync.WaitGroup
		for i, m := range members {
			done.Go(func() { errs[i] = do(m) })
		}
		done.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatalf("making group %s: %v", group, err)
		}
	}
	each(func(m *rawMember) error { return m.join() })
	each(func(m *rawMember) error {
		assignment, err := m.sync()
		if err == nil && string(assignment) != m.id {
			err = fmt.Errorf("member %s got the assignment %q", m.id, assignment)
		}
		return err
	})
	return members
}

// TestGroupRestart restarts the broker under a stable group. Members go on as if nothing had happened; those that are
// not heard of any more have a whole session from then on.
func TestGroupRestart(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, durability string
		end              func(*testing.T, *harness.Broker)
	}{
		{"stopped", "local", func(_ *testing.T, b *harness.Broker) { b.Stop() }},
		{"killed", "local", func(_ *testing.T, b *harness.Broker) { b.Kill() }},
		{"killed, disk lost", "remote", func(t *testing.T, b *harness.Broker) {
			b.Kill()
			if err := os.RemoveAll(b.DataDir); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b := harness.Start(t, harness.Config{Flags: []string{"--durability", test.durability, "--flush-interval", "50ms"}})
			createTopic(t, b, groupTopic, 1)
			members := newRawGroup(t, b, "restarted", 3)
			if err := members[0].commit(7, ""); err != nil {
				t.Fatal(err)
			}
			test.end(t, b)
			b.Start()
			restarted := time.Now()
			silent := members[2]
			members = members[:2]
			for _, m := range members {
				m.c = harness.Dial(t, b.Addr)
				if err := m.heartbeat(); err != nil {
					t.Errorf("the heartbeat after the restart: %v", err)
				}
				assignment, err := m.sync()
				if err != nil || string(assignment) != m.id {
					t.Errorf("after the restart member %s has the assignment %q, %v", m.id, assignment, err)
				}
			}
			if got := committed(members[0].c, "restarted"); got != 7 {
				t.Errorf("after the restart offset %d is committed, want 7", got)
			}
			if err := members[1].commit(8, ""); err != nil {
				t.Errorf("committing in the generation of before the restart: %v", err)
			}
			// The group stays as it is until the session of the silent one ends.
			var err error
			until(t, "the silent member is missed", func() bool {
				err = errors.Join(members[0].heartbeat(), members[1].heartbeat())
				return err != nil
			})
			mustBe(t, "heartbeat after a member's session has ended", err, kerr.RebalanceInProgress)
			if took := time.Since(restarted); took < sessionTimeout-time.Second {
				t.Errorf("a member was missed %v after the restart; its session lasts %v", took, sessionTimeout)
			}
			silent.c = harness.Dial(t, b.Addr)
			mustBe(t, "heartbeat of the silent member", silent.heartbeat(), kerr.UnknownMemberID)
		})
	}
}

// TestGroupErrors sends requests that a group must refuse, in every version, with the error that Kafka gives.
func TestGroupErrors(t *testing.T) {
	t.Parallel()
	b := harness.Start(t, harness.Config{})
	createTopic(t, b, groupTopic, 1)
	m := newRawGroup(t, b, "strict", 1, func(m *rawMember) { m.sessionTimeout = 5 * time.Minute })[0]
	served := make(map[int16]kmsg.ApiVersionsResponseApiKey)
	for _, k := range apiVersions(t, harness.Dial(t, b.Addr)) {
		served[k.ApiKey] = k
	}

	heartbeat := func(change func(*kmsg.HeartbeatRequest)) kmsg.Request {
		req := m.heartbeatRequest()
		change(req)
		return req
	}
	sync := func(change func(*kmsg.SyncGroupRequest)) kmsg.Request {
		req := m.syncRequest()
		change(req)
		return req
	}
	join := func(change func(*kmsg.JoinGroupRequest)) kmsg.Request {
		req := m.joinRequest()
		change(req)
		return req
	}
	commit := func(change func(*kmsg.OffsetCommitRequest)) kmsg.Request {
		req := m.commitRequest(1, "")
		change(req)
		return req
	}
	leave := func(group, member string) kmsg.Request {
		req := kmsg.NewPtrLeaveGroupRequest()
		req.Group, req.MemberID = group, member
		rm := kmsg.NewLeaveGroupRequestMember()
		rm.MemberID = member
		req.Members = append(req.Members, rm)
		return req
	}
	wrongProtocol := []kmsg.JoinGroupRequestProtocol{{Name: "another", Metadata: []byte("x")}}
	tests := []struct {
		name string
		req  kmsg.Request
		want *kerr.Error
		// since is the lowest version that has what the request is about.
		since int16
	}{
		{"older generation", heartbeat(func(r *kmsg.HeartbeatRequest) { r.Generation-- }), kerr.IllegalGeneration, 0},
		{"newer generation", heartbeat(func(r *kmsg.HeartbeatRequest) { r.Generation++ }), kerr.IllegalGeneration, 0},
		{"unknown member", heartbeat(func(r *kmsg.HeartbeatRequest) { r.MemberID = "nobody" }), kerr.UnknownMemberID, 0},
		{"unknown group", heartbeat(func(r *kmsg.HeartbeatRequest) { r.Group = "nothing" }), kerr.UnknownMemberID, 0},
		{"empty group id", heartbeat(func(r *kmsg.HeartbeatRequest) { r.Group = "" }), kerr.InvalidGroupID, 0},

		{"older generation", sync(func(r *kmsg.SyncGroupRequest) { r.Generation-- }), kerr.IllegalGeneration, 0},
		{"newer generation", sync(func(r *kmsg.SyncGroupRequest) { r.Generation++ }), kerr.IllegalGeneration, 0},
		{"unknown member", sync(func(r *kmsg.SyncGroupRequest) { r.MemberID = "nobody" }), kerr.UnknownMemberID, 0},
		{"empty group id", sync(func(r *kmsg.SyncGroupRequest) { r.Group = "" }), kerr.InvalidGroupID, 0},
		{"other protocol", sync(func(r *kmsg.SyncGroupRequest) { r.Protocol = kmsg.StringPtr("another") }), kerr.InconsistentGroupProtocol, 5},
		{"other protocol type", sync(func(r *kmsg.SyncGroupRequest) { r.ProtocolType = kmsg.StringPtr("connect") }), kerr.InconsistentGroupProtocol, 5},

		{"older generation", commit(func(r *kmsg.OffsetCommitRequest) { r.Generation-- }), kerr.IllegalGeneration, 0},
		{"newer generation", commit(func(r *kmsg.OffsetCommitRequest) { r.Generation++ }), kerr.IllegalGeneration, 0},
		{"unknown member", commit(func(r *kmsg.OffsetCommitRequest) { r.MemberID = "nobody" }), kerr.UnknownMemberID, 0},
		{"no member, but the group has some", commit(func(r *kmsg.OffsetCommitRequest) { r.MemberID, r.Generation = "", -1 }), kerr.UnknownMemberID, 0},
		{"metadata of 5,000 bytes", commit(func(r *kmsg.OffsetCommitRequest) {
			r.Topics[0].Partitions[0].Metadata = kmsg.StringPtr(strings.Repeat("x", 5000))
		}), kerr.OffsetMetadataTooLarge, 0},
		{"metadata of 3 MiB", commit(func(r *kmsg.OffsetCommitRequest) {
			r.Topics[0].Partitions[0].Metadata = kmsg.StringPtr(strings.Repeat("x", 3<<20))
		}), kerr.OffsetMetadataTooLarge, 8}, // shorter strings before
		{"no such partition", commit(func(r *kmsg.OffsetCommitRequest) { r.Topics[0].Partitions[0].Partition = 1 }), kerr.UnknownTopicOrPartition, 0},
		{"negative partition", commit(func(r *kmsg.OffsetCommitRequest) { r.Topics[0].Partitions[0].Partition = -1 }), kerr.UnknownTopicOrPartition, 0},

		{"empty group id", join(func(r *kmsg.JoinGroupRequest) { r.Group = "" }), kerr.InvalidGroupID, 0},
		{"unknown member", join(func(r *kmsg.JoinGroupRequest) { r.MemberID = "nobody" }), kerr.UnknownMemberID, 0},
		{"unknown group", join(func(r *kmsg.JoinGroupRequest) { r.Group = "nothing" }), kerr.UnknownMemberID, 0},
		{"session too short", join(func(r *kmsg.JoinGroupRequest) { r.SessionTimeoutMillis = 5999 }), kerr.InvalidSessionTimeout, 0},
		{"session too long", join(func(r *kmsg.JoinGroupRequest) { r.SessionTimeoutMillis = 1_800_001 }), kerr.InvalidSessionTimeout, 0},
		{"negative session", join(func(r *kmsg.JoinGroupRequest) { r.SessionTimeoutMillis = -1 }), kerr.InvalidSessionTimeout, 0},
		{"other protocol", join(func(r *kmsg.JoinGroupRequest) { r.MemberID, r.Protocols = "", wrongProtocol }), kerr.InconsistentGroupProtocol, 0},
		{"other protocol type", join(func(r *kmsg.JoinGroupRequest) { r.MemberID, r.ProtocolType = "", "connect" }), kerr.InconsistentGroupProtocol, 0},
		{"no protocol", join(func(r *kmsg.JoinGroupRequest) { r.MemberID, r.Protocols = "", nil }), kerr.InconsistentGroupProtocol, 0},
		{"no protocol in a new group", join(func(r *kmsg.JoinGroupRequest) { r.Group, r.MemberID, r.Protocols = "new", "", nil }), kerr.InconsistentGroupProtocol, 0},
		{"no protocol type in a new group", join(func(r *kmsg.JoinGroupRequest) { r.Group, r.MemberID, r.ProtocolType = "new", "", "" }), kerr.InconsistentGroupProtocol, 0},
		{"no member id", join(func(r *kmsg.JoinGroupRequest) { r.MemberID = "" }), kerr.MemberIDRequired, 4},
		{"20,000 protocols", join(func(r *kmsg.JoinGroupRequest) {
			r.Group, r.MemberID = "new", ""
			for i := range 20_000 {
				r.Protocols = append(r.Protocols, kmsg.JoinGroupRequestProtocol{Name: fmt.Sprint(i), Metadata: []byte("x")})
			}
		}), kerr.InconsistentGroupProtocol, 0},

		{"unknown member", leave("strict", "nobody"), kerr.UnknownMemberID, 0},
		{"unknown group", leave("nothing", "nobody"), kerr.UnknownMemberID, 0},
		{"empty group id", leave("", "nobody"), kerr.InvalidGroupID, 0},
		{"group with members", &kmsg.DeleteGroupsRequest{Groups: []string{"strict"}}, kerr.NonEmptyGroup, 0},
		{"unknown group", &kmsg.DeleteGroupsRequest{Groups: []string{"nothing"}}, kerr.GroupIDNotFound, 0},
	}
	c := harness.Dial(t, b.Addr)
	for _, test := range tests {
		k := served[test.req.Key()]
		for version := max(k.MinVersion, test.since); version <= k.MaxVersion; version++ {
			test.req.SetVersion(version)
			if r, ok := test.req.(*kmsg.OffsetCommitRequest); ok && version >= 10 {
				r.Topics[0].TopicID = topicID(t, c, groupTopic)
			}
			resp := harness.Do[kmsg.Response](c, test.req)
			if got := firstError(resp); !errors.Is(got, test.want) {
				t.Errorf("%s v%d, %s: %v, want %v", kmsg.NameForKey(test.req.Key()), version, test.name, got, test.want)
			}
		}
	}
	// None of this has changed anything.
	m.c = harness.Dial(t, b.Addr)
	if err := errors.Join(m.heartbeat(), m.commit(1, strings.Repeat("x", 4096))); err != nil {
		t.Errorf("the only member is disturbed: %v", err)
	}
}

// firstError is the error that a response carries, nil if it carries none.
func firstError(resp kmsg.Response) error {
	codes := errorCodes(resp)
	fields := make([]string, 0, len(codes))
	for field := range codes {
		fields = append(fields, field)
	}
	if len(fields) == 0 {
		return nil
	}
	return codes[slices.Min(fields)]
}

func topicID(t *testing.T, c *harness.Conn, topic string) [16]byte {
	t.Helper()
	req := kmsg.NewPtrMetadataRequest()
	req.Version = 12
	rt := kmsg.NewMetadataRequestTopic()
	rt.Topic = &topic
	req.Topics = append(req.Topics, rt)
	return harness.Do[*kmsg.MetadataResponse](c, req).Topics[0].TopicID
}

// TestGroupInstanceTwice has two clients with the same instance id. The younger takes the place of the older.
func TestGroupInstanceTwice(t *testing.T) {
	t.Parallel()
	b := harness.Start(t, harness.Config{})
	createTopic(t, b, groupTopic, 1)
	static := func(m *rawMember) { m.instance = kmsg.StringPtr("static") }

	// While the older still waits for others to join.
	older, younger := newRawMember(t, b, "waiting"), newRawMember(t, b, "waiting")
	static(older)
	static(younger)
	older.c.Send(older.joinRequest())
	until(t, "the first JoinGroup is being handled", func() bool { return groupState(harness.Dial(t, b.Addr), "waiting") == "PreparingRebalance" })
	younger.c.Send(younger.joinRequest())
	fenced := harness.Await[*kmsg.JoinGroupResponse](older.c, older.joinRequest(), older.c.Correlation())
	mustBe(t, "JoinGroup of the older", kerr.ErrorForCode(fenced.ErrorCode), kerr.FencedInstanceID)
	joined := harness.Await[*kmsg.JoinGroupResponse](younger.c, younger.joinRequest(), younger.c.Correlation())
	if joined.ErrorCode != 0 || len(joined.Members) != 1 {
		t.Errorf("the younger's JoinGroup: %v, %d members, want 1", kerr.ErrorForCode(joined.ErrorCode), len(joined.Members))
	}

	// In a stable group.
	older = newRawGroup(t, b, "stable", 1, static)[0]
	younger = newRawMember(t, b, "stable")
	static(younger)
	if err := younger.join(); err != nil {
		t.Fatal(err)
	}
	if younger.generation != older.generation || !younger.joined.SkipAssignment {
		t.Errorf("the younger is in generation %d and assigns: %v; want %d and not to", younger.generation, !younger.joined.SkipAssignment, older.generation)
	}
	_, syncErr := older.sync()
	for what, err := range map[string]error{
		"Heartbeat": older.heartbeat(), "SyncGroup": syncErr, "OffsetCommit": older.commit(1, ""), "JoinGroup": older.join(),
	} {
		mustBe(t, what+" of the older", err, kerr.FencedInstanceID)
	}
	if err := errors.Join(younger.heartbeat(), younger.commit(1, "")); err != nil {
		t.Errorf("the younger is disturbed: %v", err)
	}
}

func groupState(c *harness.Conn, group string) string {
	req := kmsg.NewPtrDescribeGroupsRequest()
	req.Version = 5
	req.Groups = []string{group}
	return harness.Do[*kmsg.DescribeGroupsResponse](c, req).Groups[0].State
}

// TestGroupHugeRequests sends requests of about 100 MB, over and over. They get an error or their connection is closed;
// the broker's memory stays bounded and others are served.
func TestGroupHugeRequests(t *testing.T) {
	t.Parallel()
	b := harness.Start(t, harness.Config{Flags: smallMemory})
	createTopic(t, b, groupTopic, 1)
	bystander := watchBystander(t, b)
	const huge = 100_000_000
	m := newRawMember(t, b, "huge")
	m.generation = -1
	join := m.joinRequest()
	join.Version = 3 // joins without a member id
	join.Protocols[0].Metadata = make([]byte, huge)
	for _, req := range []kmsg.Request{m.commitRequest(1, string(bytes.Repeat([]byte{'x'}, huge))), join} {
		name := kmsg.NameForKey(req.Key())
		frame := m.c.Frame(req)
		for range 3 {
			c := harness.Dial(t, b.Addr)
			resp, err := trySend(c, frame, req)
			switch {
			case err != nil && !isClosed(err):
				t.Errorf("%s of %d bytes: %v", name, len(frame), err)
			case err != nil:
				t.Logf("%s of %d bytes: the connection was closed", name, len(frame))
			case firstError(resp) == nil:
				t.Errorf("%s of %d bytes is answered without an error", name, len(frame))
			default:
				t.Logf("%s of %d bytes: %v", name, len(frame), firstError(resp))
			}
			_ = c.Close()
		}
	}
	bystander.check(t)
	checkPeak(t, b)
	if got := committed(harness.Dial(t, b.Addr), "huge"); got != -1 {
		t.Errorf("offset %d is committed, want none", got)
	}
}

// trySend sends a frame, which the broker may not read to its end, and waits for the answer.
func trySend(c *harness.Conn, frame []byte, req kmsg.Request) (kmsg.Response, error) {
	if err := c.SetWriteDeadline(time.Now().Add(stepTimeout)); err != nil {
		return nil, err
	}
	if _, err := c.Write(frame); err != nil {
		return nil, err
	}
	resp, _, err := c.Receive(req)
	return resp, err
}

// TestGroupHugeMetadata sends metadata of 100 MB to a broker with the default memory: it
// takes frames as large as Kafka does, and answers as Kafka does.
func TestGroupHugeMetadata(t *testing.T) {
	t.Parallel()
	b := harness.Start(t, harness.Config{})
	createTopic(t, b, groupTopic, 1)
	m := newRawMember(t, b, "huge")
	m.generation = -1
	const huge = 100_000_000
	commit := m.commitRequest(1, string(bytes.Repeat([]byte{'x'}, huge)))
	resp, err := trySend(harness.Dial(t, b.Addr), m.c.Frame(commit), commit)
	if err != nil {
		t.Fatal(err)
	}
	mustBe(t, "OffsetCommit with 100 MB of metadata", firstError(resp), kerr.OffsetMetadataTooLarge)

	join := m.joinRequest()
	join.Version = 3 // joins without a member id
	join.Protocols[0].Metadata = make([]byte, huge)
	resp, err = trySend(harness.Dial(t, b.Addr), m.c.Frame(join), join)
	if err != nil {
		t.Fatal(err)
	}
	if code := firstError(resp); code == nil {
		t.Error("JoinGroup with 100 MB of metadata is answered without an error")
	} else {
		t.Logf("JoinGroup with 100 MB of metadata: %v", code)
	}
}
