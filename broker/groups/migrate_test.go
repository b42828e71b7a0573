package groups

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// subscribing encodes a subscription, version 1, of a consumer of "orders" that holds partitions of it.
func subscribing(owned ...int32) []byte {
	b := subscribe("orders")
	b[1] = 1
	return append(b, appendPartitions(nil, owned)...)
}

// assigning encodes an assignment, version 0, of partitions of "orders".
func assigning(partitions ...int32) []byte {
	b := appendPartitions([]byte{0, 0}, partitions)
	return append(b, 0xff, 0xff, 0xff, 0xff)
}

func appendPartitions(b []byte, partitions []int32) []byte {
	if len(partitions) == 0 {
		return append(b, 0, 0, 0, 0)
	}
	b = append(b, 0, 0, 0, 1, 0, 6)
	b = append(b, "orders"...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(partitions)))
	for _, p := range partitions {
		b = binary.BigEndian.AppendUint32(b, uint32(p))
	}
	return b
}

func cooperative(owned ...int32) func(*JoinRequest) {
	return listing(Protocol{"cooperative-sticky", subscribing(owned...)})
}

// classicStable makes a classic Stable group of one member that has all of "orders".
func (f *fixture) classicStable() JoinResult {
	f.t.Helper()
	r := get(f.t, f.Join(joining("", cooperative())))
	wantErr(f.t, "join", r.Err, nil)
	wantErr(f.t, "sync", get(f.t, f.Sync(syncing(r, Assignment{r.MemberID, assigning(0, 1, 2, 3)}))).Err, nil)
	f.wantState(Stable)
	return r
}

func (f *fixture) beatClassic(r JoinResult) *kafkaproto.Error {
	return f.Heartbeat(&HeartbeatRequest{Group: "g", MemberID: r.MemberID, Generation: r.Generation})
}

// syncOwned sends SyncGroup and returns what the member is assigned.
func (f *fixture) syncOwned(r JoinResult) assignment {
	f.t.Helper()
	synced := get(f.t, f.Sync(syncing(r)))
	wantErr(f.t, "sync", synced.Err, nil)
	return f.decodeOwned(synced.Assignment)
}

func (f *fixture) decodeOwned(b []byte) assignment {
	f.t.Helper()
	topics, err := parseAssignment(b)
	if err != nil {
		f.t.Fatal(err)
	}
	var all assignment
	for _, named := range topics {
		want(f.t, "topic", named.topic, "orders")
		all = append(all, parts(named.partitions...)...)
	}
	return all
}

// A classic group whose members are consumers becomes a consumer group; the member keeps its partitions, is told to
// rejoin, and gives up a share. When the other one leaves the group is a classic one again, at the epoch it had.
func TestUpgradeAndDowngrade(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		m := f.classicStable()
		b := f.consumers("b")[0]
		b.want(2)
		f.wantConsumerState(Reconciling, 2)
		d, _ := f.DescribeConsumer("g")
		want(t, "members", []bool{d.Members[0].Classic, d.Members[1].Classic}, []bool{false, true})

		wantErr(t, "told to rejoin", f.beatClassic(m), kafkaproto.ErrRebalanceInProgress)
		m = get(t, f.Join(joining(m.MemberID, cooperative(0, 1, 2, 3))))
		want(t, "join", m, JoinResult{Generation: 1, ProtocolType: "consumer", Protocol: "cooperative-sticky", MemberID: m.MemberID})
		owned := f.syncOwned(m)
		want(t, "to keep", len(owned), 2)
		wantErr(t, "told to rejoin", f.beatClassic(m), kafkaproto.ErrRebalanceInProgress)
		b.keepAlive()
		b.want(2)
		m = get(t, f.Join(joining(m.MemberID, cooperative(owned[0].partition, owned[1].partition))))
		want(t, "generation", m.Generation, int32(2))
		want(t, "kept", f.syncOwned(m), owned)
		b.keepAlive()
		want(t, "handed over", b.owned, parts(0, 1, 2, 3).minus(owned))
		wantErr(t, "heartbeat", f.beatClassic(m), nil)
		f.wantConsumerState(Stable, 2)
		r := commit(m, 7)
		r.Offsets[0].Partition = owned[0].partition
		f.mustCommit(r)

		f.restart()
		wantErr(t, "heartbeat after a restart", f.beatClassic(m), nil)
		want(t, "the assignment again", f.syncOwned(m), owned)

		b.leave()
		f.wantState(PreparingRebalance)
		wantErr(t, "told to rejoin", f.beatClassic(m), kafkaproto.ErrRebalanceInProgress)
		m = get(t, f.Join(joining(m.MemberID, cooperative(owned[0].partition, owned[1].partition))))
		want(t, "generation", m.Generation, int32(3))
		want(t, "leader", m.LeaderID, m.MemberID)
		want(t, "synced", get(t, f.Sync(syncing(m, Assignment{m.MemberID, assigning(0, 1, 2, 3)}))).Assignment, assigning(0, 1, 2, 3))
		f.wantState(Stable)
		want(t, "rows", f.rows.keys(), []string{"group-offset/g/orders/" + string('0'+rune(owned[0].partition)), "group/g"})
	})
}

// Right after the downgrade a restart finds a classic group, whose members rejoin.
func TestRestartAfterDowngrade(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		m := f.classicStable()
		b := f.consumers("b")[0]
		b.leave()
		f.restart()
		f.wantState(Stable)
		wantErr(t, "heartbeat of the generation before", f.beatClassic(m), kafkaproto.ErrIllegalGeneration)
		m = get(t, f.Join(joining(m.MemberID, cooperative())))
		want(t, "generation", m.Generation, int32(3))
	})
}

func TestUpgradeIsRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		edit func(*Options)
		join func(*JoinRequest)
	}{
		"policy":        {func(o *Options) { o.MigrationPolicy = MigrationDowngrade }, cooperative()},
		"too large":     {func(o *Options) { o.ConsumerMaxSize = 1 }, cooperative()},
		"protocol type": {nil, func(r *JoinRequest) { r.ProtocolType = "connect" }},
		"metadata":      {nil, listing(Protocol{"range", []byte("?")})},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, tc.edit, func(t *testing.T, f *fixture) {
				f.stable(2, tc.join)
				wantErr(t, "join", f.consumer("b").join().Err, kafkaproto.ErrGroupIDNotFound)
				f.wantState(Stable)
			})
		})
	}
}

// With a policy that does not allow it the group stays a consumer group, whose members the broker serves.
func TestDowngradeIsNotAllowed(t *testing.T) {
	inBubble(t, func(o *Options) { o.MigrationPolicy = MigrationUpgrade }, func(t *testing.T, f *fixture) {
		m := f.classicStable()
		b := f.consumers("b")[0]
		b.leave()
		m = get(t, f.Join(joining(m.MemberID, cooperative(0, 1, 2, 3))))
		want(t, "all", f.syncOwned(m), parts(0, 1, 2, 3))
		f.wantConsumerState(Stable, 3)
	})
}

// Groups without members change type as they are needed, whatever the policy, and keep their offsets.
func TestEmptyGroupsChangeType(t *testing.T) {
	inBubble(t, func(o *Options) { o.MigrationPolicy = MigrationDisabled }, func(t *testing.T, f *fixture) {
		m := f.classicStable()
		f.mustCommit(commit(m, 5))
		wantErr(t, "with a member", f.consumer("b").join().Err, kafkaproto.ErrGroupIDNotFound)
		_, err := f.Leave("g", []LeavingMember{{MemberID: m.MemberID}})
		wantErr(t, "leave", err, nil)
		b := f.consumers("b")[0]
		b.want(3, 0, 1, 2, 3) // generation 2 was that without members
		want(t, "offset", f.committed(), int64(5))
		b.leave()
		f.restart()
		m = f.classicStable()
		want(t, "generation", m.Generation, int32(5))
		want(t, "offset", f.committed(), int64(5))
		f.restart()
		f.wantState(Stable)
	})
}

// The upgrade answers whoever waits for a rebalance.
func TestUpgradeDuringARebalance(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		m := f.classicStable()
		waiting := f.Join(joining("", cooperative()))
		f.wantState(PreparingRebalance)
		b := f.consumers("b")[0]
		wantErr(t, "who waits", get(t, waiting).Err, kafkaproto.ErrRebalanceInProgress)
		wantErr(t, "who does not know", f.beatClassic(m), kafkaproto.ErrRebalanceInProgress)
		b.want(2)
		d, _ := f.DescribeConsumer("g")
		want(t, "members", len(d.Members), 3)
	})
}

// A member that rebalances cooperatively holds on to its partitions although it has no assignment at the moment.
func TestUpgradeWhileTheLeaderAssigns(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		m := f.classicStable()
		other := f.Join(joining("", cooperative()))
		m = get(t, f.Join(joining(m.MemberID, cooperative(0, 1, 2, 3))))
		get(t, other)
		f.wantState(CompletingRebalance)
		f.Join(joining(m.MemberID, listing(Protocol{"cooperative-sticky", subscribing(0, 1, 2)}))) // changes, so it starts anew
		f.wantState(PreparingRebalance)
		b := f.consumers("b")[0]
		b.want(3, 3)
		d, _ := f.DescribeConsumer("g")
		for _, member := range d.Members {
			if member.MemberID == m.MemberID {
				want(t, "held", flatten(member.Assignment), parts(0, 1, 2))
			}
		}
	})
}

func TestClassicMemberJoinsAConsumerGroup(t *testing.T) {
	inBubble(t, func(o *Options) { o.ConsumerMaxSize = 2 }, func(t *testing.T, f *fixture) {
		a := f.settled("a")[0]
		fails := func(what string, err *kafkaproto.Error, edit ...func(*JoinRequest)) JoinResult {
			t.Helper()
			r := get(t, f.Join(joining("", edit...)))
			wantErr(t, what, r.Err, err)
			return r
		}
		fails("other type", kafkaproto.ErrInconsistentGroupProtocol, func(r *JoinRequest) { r.ProtocolType = "connect" })
		fails("no protocols", kafkaproto.ErrInconsistentGroupProtocol, listing())
		fails("bad metadata", kafkaproto.ErrInconsistentGroupProtocol, listing(Protocol{"range", []byte("?")}))
		given := fails("without an id", kafkaproto.ErrMemberIDRequired, func(r *JoinRequest) { r.RequireMemberID = true })
		fails("unknown instance", kafkaproto.ErrUnknownMemberID, func(r *JoinRequest) { r.MemberID, r.InstanceID = "x", "i" })

		m := get(t, f.Join(joining(given.MemberID, cooperative())))
		wantErr(t, "join", m.Err, nil)
		want(t, "generation", m.Generation, int32(2))
		want(t, "nothing yet", f.syncOwned(m), assignment(nil))
		fails("no common protocol", kafkaproto.ErrInconsistentGroupProtocol, listing(Protocol{"range", subscribing()}),
			func(r *JoinRequest) { r.MemberID = m.MemberID })
		fails("full", kafkaproto.ErrGroupMaxSizeReached, cooperative())
		wantErr(t, "nothing is free", f.beatClassic(m), nil)
		a.beat()
		a.beat()
		wantErr(t, "something is free", f.beatClassic(m), kafkaproto.ErrRebalanceInProgress)
		m = get(t, f.Join(joining(m.MemberID, cooperative())))
		want(t, "its share", f.syncOwned(m), parts(0, 1, 2, 3).minus(a.owned))
		f.wantConsumerState(Stable, 2)

		wrong := m
		wrong.Generation++
		wantErr(t, "heartbeat", f.beatClassic(wrong), kafkaproto.ErrIllegalGeneration)
		wantErr(t, "sync", get(t, f.Sync(syncing(wrong))).Err, kafkaproto.ErrIllegalGeneration)
		wantErr(t, "commit", get(t, f.Commit(commit(wrong, 1)))[0], kafkaproto.ErrIllegalGeneration)
		wrong = m
		wrong.Protocol = "range"
		wantErr(t, "other protocol", get(t, f.Sync(syncing(wrong))).Err, kafkaproto.ErrInconsistentGroupProtocol)
		a.edits = append(a.edits, reading("orders", "dir/stream"))
		a.beat()
		wantErr(t, "sync in a rebalance", get(t, f.Sync(syncing(m))).Err, kafkaproto.ErrRebalanceInProgress)

		errs, err := f.Leave("g", []LeavingMember{{MemberID: "x"}, {MemberID: m.MemberID}})
		wantErr(t, "leave", err, nil)
		wantErr(t, "stranger", errs[0], kafkaproto.ErrUnknownMemberID)
		wantErr(t, "member", errs[1], nil)
		f.wantConsumerState(Assigning, 4)
	})
}

// A classic member must rejoin, sync and send heartbeats in time.
func TestClassicMemberIsLate(t *testing.T) {
	for name, tc := range map[string]struct {
		beats bool
		sync  bool
		last  time.Duration
	}{
		"no heartbeats": {false, true, 11 * time.Second},
		"no sync":       {true, false, 65 * time.Second},
		"in time":       {true, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, f *fixture) {
				a := f.settled("a")[0]
				m := get(t, f.Join(joining("", cooperative())))
				if tc.sync {
					f.syncOwned(m)
				}
				gone := time.Duration(0)
				start := time.Now()
				for time.Since(start) < 3*time.Minute && gone == 0 {
					pass(time.Second)
					a.beat()
					if d, _ := f.DescribeConsumer("g"); len(d.Members) == 1 {
						gone = time.Since(start)
						break
					}
					if tc.beats && f.beatClassic(m) != nil {
						m = get(t, f.Join(joining(m.MemberID, cooperative(2, 3))))
						if tc.sync {
							f.syncOwned(m)
						}
					}
				}
				if gone > tc.last || tc.last > 0 && gone == 0 {
					t.Errorf("it was removed after %s, want %s", gone, tc.last)
				}
			})
		})
	}
}

func TestClassicMemberDoesNotRejoin(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		m := f.classicStable()
		b := f.consumers("b")[0]
		for range 61 {
			f.beatClassic(m)
			b.beat()
			pass(time.Second)
		}
		wantErr(t, "heartbeat", f.beatClassic(m), kafkaproto.ErrUnknownMemberID)
		b.beat()
		want(t, "all", b.owned, parts(0, 1, 2, 3))
	})
}

// A static member may come back with the other protocol, in either direction.
func TestStaticMemberChangesProtocol(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		a, b := f.consumer("a", instance("i")), f.consumer("b")
		a.join()
		b.join()
		f.settle(a, b)
		m := get(t, f.Join(joining("", cooperative(), static("i"))))
		want(t, "generation", m.Generation, int32(2))
		synced := get(t, f.Sync(&SyncRequest{Group: "g", MemberID: m.MemberID, InstanceID: "i", Generation: 2}))
		want(t, "the same partitions", f.decodeOwned(synced.Assignment), parts(0, 1))
		wantErr(t, "the one before", a.beat().Err, kafkaproto.ErrFencedInstanceID)
		fenced := get(t, f.Join(joining("x", cooperative(), static("i"))))
		wantErr(t, "another", fenced.Err, kafkaproto.ErrFencedInstanceID)
		again := f.consumer("again", instance("i"))
		wantErr(t, "back", again.join().Err, nil)
		again.want(2, 0, 1)
		f.wantConsumerState(Stable, 2)
		errs, _ := f.Leave("g", []LeavingMember{{InstanceID: "i"}})
		wantErr(t, "an administrator cannot remove it", errs[0], kafkaproto.ErrUnknownMemberID)
	})
}

// The last member that lets the broker assign is replaced by one that does not: the group is a classic one.
func TestStaticMemberEndsTheConsumerGroup(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		a := f.consumer("a", instance("i"))
		a.join()
		m := get(t, f.Join(joining("", cooperative(), static("i"))))
		wantErr(t, "alone", m.Err, nil)
		want(t, "leader", m.LeaderID, m.MemberID)
		f.wantState(CompletingRebalance)
		f.restart() // the rebalance is not stored, the type is
		all, err := f.ListTypes()
		want(t, "error", err, nil)
		want(t, "list", all, []TypedListing{{Listing: Listing{"g", "consumer", Empty}}})
	})
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		a := f.consumer("a", instance("i"))
		a.join()
		m := get(t, f.Join(joining("", cooperative())))
		f.syncOwned(m)
		waiting := f.Join(joining("", cooperative(), static("i")))
		mustWait(t, waiting)
		f.wantState(PreparingRebalance)
		m = get(t, f.Join(joining(m.MemberID, cooperative())))
		wantErr(t, "the other", m.Err, nil)
		wantErr(t, "the static one", get(t, waiting).Err, nil)
	})
}

func TestConsumerProtocolData(t *testing.T) {
	s, err := parseSubscription(append(append(func() []byte { b := subscribing(1, 2); b[1] = 3; return b }(), 0, 0, 0, 9), 0, 1, 'r'))
	want(t, "error", err, nil)
	want(t, "subscription", s, clientSubscription{topics: []string{"orders"}, owned: []namedPartitions{{"orders", []int32{1, 2}}}, rack: "r"})
	for _, full := range [][]byte{subscribing(1, 2), assigning(1, 2)[:len(assigning(1, 2))-4]} {
		for n := range full {
			_, err := parseSubscription(full[:n])
			if n < 2 && err == nil {
				t.Errorf("%x is a subscription", full[:n])
			}
		}
	}
	for n := 1; n < len(assigning(1, 2))-4; n++ {
		if _, err := parseAssignment(assigning(1, 2)[:n]); err == nil {
			t.Errorf("%x is an assignment", assigning(1, 2)[:n])
		}
	}
	_, err = parseAssignment([]byte{0xff, 0xff, 0, 0, 0, 0})
	want(t, "negative version", err, errBadAssignment)
}

// Members that rejoin cannot bring more metadata than new ones.
func TestRejoinMetadataBounded(t *testing.T) {
	for name, edits := range map[string][]func(*JoinRequest){"dynamic": nil, "static": {static("i")}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, f *fixture) {
				f.settled("a")
				with := func(size int) []func(*JoinRequest) {
					return append(edits[:len(edits):len(edits)], listing(Protocol{"range", subscribe("orders")}, Protocol{"x", make([]byte, size)}))
				}
				r := get(t, f.Join(joining("", with(1)...)))
				wantErr(t, "join", r.Err, nil)
				for _, id := range []string{r.MemberID, r.MemberID} {
					wantErr(t, "rejoin", get(t, f.Join(joining(id, with(maxGroupMetadata*2/3)...))).Err, nil)
				}
				wantErr(t, "too large", get(t, f.Join(joining(r.MemberID, with(maxGroupMetadata)...))).Err, kafkaproto.ErrGroupMaxSizeReached)
				if edits != nil {
					wantErr(t, "replaced by one too large", get(t, f.Join(joining("", with(maxGroupMetadata)...))).Err, kafkaproto.ErrGroupMaxSizeReached)
				}
				wantErr(t, "smaller", get(t, f.Join(joining(r.MemberID, with(1)...))).Err, nil)
			})
		})
	}
}

// Whoever makes the group a classic one is told if that cannot be written, and a restart finds the group as it was.
func TestDowngradeFails(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		m := f.classicStable()
		b := f.consumers("b")[0]
		f.rows.set(nil, time.Second)
		beat := f.ConsumerHeartbeat(b.request(0)) // rejoins, so a write is on its way
		pass(0)
		f.rows.set(errStorage, time.Second)
		changed := b.request(2)
		changed.RackID = &changed.MemberID
		queued := f.ConsumerHeartbeat(changed)
		left := f.ConsumerHeartbeat(b.request(leaveEpoch))
		mustWait(t, left)
		pass(3 * time.Second)
		get(t, beat)
		wantErr(t, "queued before", get(t, queued).Err, kafkaproto.ErrUnknownServerError)
		wantErr(t, "leave", get(t, left).Err, kafkaproto.ErrUnknownServerError)
		f.rows.set(nil, 0)
		f.restart()
		d, err := f.DescribeConsumer("g")
		wantErr(t, "describe", err, nil)
		want(t, "members", len(d.Members), 2)
		wantErr(t, "leave again", f.consumer("b").leave().Err, nil)
		f.wantState(PreparingRebalance)
		wantErr(t, "told to rejoin", f.beatClassic(m), kafkaproto.ErrIllegalGeneration)
	})
}
