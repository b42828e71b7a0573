package groups

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// memory is a Storage in memory. It survives coordinators.
type memory struct {
	mu    sync.Mutex
	rows  map[string]string
	fail  error         // of Commit
	delay time.Duration // of Commit, before it takes effect
	eager bool          // changes can be seen before Commit returns
	// commits counts Commit calls, scans those of Scan by the prefix.
	commits  int
	scans    map[string]int
	scanTime time.Duration
}

func newMemory() *memory { return &memory{rows: map[string]string{}, scans: map[string]int{}} }

func (m *memory) Get(key []byte) ([]byte, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := m.rows[string(key)]
	return []byte(v), ok, nil
}

func (m *memory) Scan(prefix []byte, fn func(key, value []byte) error) error {
	m.mu.Lock()
	snapshot, takes := maps.Clone(m.rows), m.scanTime
	m.scans[string(prefix)]++
	m.mu.Unlock()
	time.Sleep(takes)
	for _, key := range slices.Sorted(maps.Keys(snapshot)) {
		if strings.HasPrefix(key, string(prefix)) {
			if err := fn([]byte(key), []byte(snapshot[key])); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *memory) Commit(ctx context.Context, changes []Change) error {
	m.mu.Lock()
	fail, delay := m.fail, m.delay
	m.commits++
	if m.eager {
		m.apply(changes)
	}
	m.mu.Unlock()
	if delay > 0 {
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if fail != nil {
		return fail
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.apply(changes)
	return nil
}

func (m *memory) apply(changes []Change) {
	for _, c := range changes {
		if c.Value == nil {
			delete(m.rows, string(c.Key))
		} else {
			m.rows[string(c.Key)] = string(c.Value)
		}
	}
}

func (m *memory) set(fail error, delay time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail, m.delay = fail, delay
}

func (m *memory) setScanTime(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.scanTime = d
}

func (m *memory) scansOf(prefix string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.scans[prefix]
}

func (m *memory) keys() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.rows))
}

// topicTable is a Topics. A topic that it does not have does not exist.
type topicTable struct {
	mu   sync.Mutex
	ids  map[string]byte
	fail error // of TopicID and Topic
	// listed counts Names calls.
	listed int
}

func (t *topicTable) failWith(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fail = err
}

func (t *topicTable) TopicID(name string) (id [16]byte, ok bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.fail != nil {
		return id, false, t.fail
	}
	n, ok := t.ids[name]
	return [16]byte{n}, ok, nil
}

func (t *topicTable) set(name string, id byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ids[name] = id; id == 0 {
		delete(t.ids, name)
	}
}

// fixture is a coordinator over memory, in a bubble of fake time.
type fixture struct {
	*Coordinator
	t      *testing.T
	rows   *memory
	topics *topicTable
	opts   Options
}

// inBubble runs a test with fake time. Options are changed by edit, which may be nil; without it empty groups do not
// wait for more members.
func inBubble(t *testing.T, edit func(*Options), test func(t *testing.T, f *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{t: t, rows: newMemory(), topics: &topicTable{ids: map[string]byte{"orders": 1, "dir/stream": 2}}}
		f.opts = Options{InitialRebalanceDelay: -1}
		if edit != nil {
			edit(&f.opts)
		}
		f.start()
		t.Cleanup(func() { f.Close() })
		test(t, f)
	})
}

func (f *fixture) start() {
	f.t.Helper()
	c, err := New(context.Background(), f.opts, f.rows, f.topics)
	if err != nil {
		f.t.Fatal(err)
	}
	f.Coordinator = c
}

// restart is a crash: what is not stored is lost.
func (f *fixture) restart() {
	f.t.Helper()
	f.Close()
	f.start()
}

// pass lets time go by.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// get returns an answer that must be there.
func get[T any](t testing.TB, p *Pending[T]) T {
	t.Helper()
	synctest.Wait()
	select {
	case <-p.done:
	default:
		t.Fatal("the request still waits")
	}
	return p.value
}

// mustWait checks that there is no answer yet.
func mustWait[T any](t testing.TB, p *Pending[T]) {
	t.Helper()
	synctest.Wait()
	select {
	case <-p.done:
		t.Fatalf("the request was answered: %+v", p.value)
	default:
	}
}

func want(t testing.TB, what string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%s: got %+v, want %+v", what, got, want)
	}
}

func wantErr(t testing.TB, what string, got, want *kafkaproto.Error) {
	t.Helper()
	switch {
	case got == nil && want == nil:
	case got == nil || want == nil || got.Code != want.Code:
		t.Fatalf("%s: error %v, want %v", what, got, want)
	}
}

func (f *fixture) wantState(want State) {
	f.t.Helper()
	synctest.Wait()
	d, err := f.Describe("g")
	wantErr(f.t, "describe", err, nil)
	if d.State != want {
		f.t.Fatalf("the group is %s, want %s", d.State, want)
	}
}

// subscribe encodes a consumer's subscription, version 0.
func subscribe(topics ...string) []byte {
	b := binary.BigEndian.AppendUint32([]byte{0, 0}, uint32(len(topics)))
	for _, t := range topics {
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(t))), t...)
	}
	return append(b, 0xff, 0xff, 0xff, 0xff) // null user data
}

// joining is a request to join the group "g" as a consumer of "orders", with a session of 10 s and a rebalance timeout
// of 60 s.
func joining(memberID string, edit ...func(*JoinRequest)) *JoinRequest {
	r := &JoinRequest{
		Group: "g", MemberID: memberID, ClientID: "client", ClientHost: "/10.0.0.1",
		SessionTimeout: 10 * time.Second, RebalanceTimeout: 60 * time.Second,
		ProtocolType: consumerProtocol, Protocols: []Protocol{{"range", subscribe("orders")}},
	}
	for _, fn := range edit {
		fn(r)
	}
	return r
}

func static(instance string) func(*JoinRequest) {
	return func(r *JoinRequest) { r.InstanceID = instance }
}

func listing(protocols ...Protocol) func(*JoinRequest) {
	return func(r *JoinRequest) { r.Protocols = protocols }
}

// syncing is a SyncGroup request for the result of a join.
func syncing(r JoinResult, assignments ...Assignment) *SyncRequest {
	return &SyncRequest{Group: "g", MemberID: r.MemberID, Generation: r.Generation, ProtocolType: &r.ProtocolType, Protocol: &r.Protocol, Assignments: assignments}
}

// assignAll assigns to each member its own name.
func assignAll(r JoinResult) []Assignment {
	var all []Assignment
	for _, m := range r.Members {
		all = append(all, Assignment{m.MemberID, []byte("for " + m.MemberID)})
	}
	return all
}

// stable makes a group of dynamic members, Stable, and returns what they were told. The first is the leader. The group
// has no members before.
func (f *fixture) stable(n int, edit ...func(*JoinRequest)) []JoinResult {
	f.t.Helper()
	results := make([]JoinResult, n)
	for i := range n {
		p := f.Join(joining("", edit...))
		if i == 0 {
			results[0] = get(f.t, p)
			continue
		}
		results = f.rejoinAll(results[:i], p, edit...)
	}
	f.syncAll(results)
	f.wantState(Stable)
	return results
}

// rejoinAll lets the known members rejoin and returns all results, that of joined last.
func (f *fixture) rejoinAll(known []JoinResult, joined *Pending[JoinResult], edit ...func(*JoinRequest)) []JoinResult {
	f.t.Helper()
	waiting := make([]*Pending[JoinResult], 0, len(known)+1)
	for _, r := range known {
		waiting = append(waiting, f.Join(joining(r.MemberID, edit...)))
	}
	if joined != nil {
		waiting = append(waiting, joined)
	}
	results := make([]JoinResult, 0, len(waiting))
	for _, p := range waiting {
		results = append(results, get(f.t, p))
		wantErr(f.t, "join", results[len(results)-1].Err, nil)
	}
	return results
}

// syncAll completes a rebalance.
func (f *fixture) syncAll(results []JoinResult) {
	f.t.Helper()
	var waiting []*Pending[SyncResult]
	for _, r := range results {
		var assignments []Assignment
		if r.MemberID == r.LeaderID {
			assignments = assignAll(r)
		}
		waiting = append(waiting, f.Sync(syncing(r, assignments...)))
	}
	for i, p := range waiting {
		r := get(f.t, p)
		wantErr(f.t, "sync", r.Err, nil)
		want(f.t, "assignment", string(r.Assignment), "for "+results[i].MemberID)
	}
}

func (f *fixture) heartbeat(r JoinResult) *kafkaproto.Error {
	return f.Heartbeat(&HeartbeatRequest{Group: "g", MemberID: r.MemberID, Generation: r.Generation})
}

// keepAlive sends heartbeats each second. All must be answered by want.
func (f *fixture) keepAlive(d time.Duration, expected *kafkaproto.Error, members ...JoinResult) {
	f.t.Helper()
	for ; d > 0; d -= time.Second {
		pass(min(d, time.Second))
		for _, m := range members {
			wantErr(f.t, "heartbeat", f.heartbeat(m), expected)
		}
	}
}

// commit is a commit of one offset for partition 0 of "orders".
func commit(r JoinResult, offset int64) *CommitRequest {
	return &CommitRequest{Group: "g", MemberID: r.MemberID, Generation: r.Generation, Offsets: []OffsetCommit{
		{Topic: "orders", TopicID: [16]byte{1}, Offset: offset, LeaderEpoch: -1, Metadata: fmt.Sprint("at ", offset)},
	}}
}

// nobody commits as a simple consumer.
var nobody = JoinResult{Generation: -1}

func (f *fixture) mustCommit(r *CommitRequest) {
	f.t.Helper()
	for _, err := range get(f.t, f.Commit(r)) {
		wantErr(f.t, "commit", err, nil)
	}
}

// committed returns the offset of partition 0 of "orders", -1 if there is none.
func (f *fixture) committed() int64 {
	f.t.Helper()
	id, _, _ := f.topics.TopicID("orders")
	o, ok, err := f.Committed("g", "orders", id, 0)
	if err != nil {
		f.t.Fatal(err)
	}
	if !ok {
		return -1
	}
	return o.Offset
}

// inMemory counts the groups that are more than rows.
func (f *fixture) inMemory() int {
	synctest.Wait()
	n := 0
	for i := range f.shards {
		f.shards[i].Lock()
		n += len(f.shards[i].groups)
		f.shards[i].Unlock()
	}
	return n
}
