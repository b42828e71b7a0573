package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

func TestGroupsCommands(t *testing.T) {
	c := startCluster(t)
	c.want("topic \"orders\" created\n", "topics", "create", "orders", "-p", "2")
	c.produce("orders", 0, "a", "b", "c")
	c.produce("orders", 1, "a", "b", "c", "d")
	c.produce("sessions/alice", 0, "a", "b")
	c.commit("billing", "orders", 3, 1)
	c.commit("billing", "sessions/alice", 0)
	c.commit("audit", "orders", 2)

	c.want(`
GROUP    STATE  TYPE     PROTOCOL
audit    Empty  classic  -
billing  Empty  classic  -
`, "groups", "list")
	c.want("[]\n", "groups", "list", "--state", "Stable", "--state", "Dead", "-o", "json")
	c.want(`
group        billing
state        Empty
type         classic
protocol     -
coordinator  3
lag          5

TOPIC           PARTITION  COMMITTED  END  LAG  MEMBER
orders          0          3          3    0    -
orders          1          1          4    3    -
sessions/alice  0          0          2    2    -
`, "groups", "describe", "billing")

	c.want(`
TOPIC           PARTITION  COMMITTED  NEW
orders          0          3          0
orders          1          1          0
sessions/alice  0          0          0

Nothing was moved: add --execute to do it.
`, "groups", "reset-offsets", "billing", "--to-earliest")
	c.want(`
TOPIC   PARTITION  COMMITTED  NEW
orders  1          1          3
`, "groups", "reset-offsets", "billing", "--topic", "orders:1", "--shift-by", "2", "--execute")
	c.want(`
{
  "group": "billing",
  "executed": true,
  "partitions": [
    {
      "topic": "orders",
      "partition": 0,
      "committed_offset": 3,
      "new_offset": 3,
      "note": "topic \"orders\", partition 0: 9 lies behind the end, 3"
    },
    {
      "topic": "orders",
      "partition": 1,
      "committed_offset": 3,
      "new_offset": 4,
      "note": "topic \"orders\", partition 1: 9 lies behind the end, 4"
    }
  ]
}
`, "groups", "reset-offsets", "billing", "-t", "orders", "--to-offset", "9", "--execute", "-o", "json")
	c.want(`
TOPIC           PARTITION  COMMITTED  NEW
sessions/alice  0          0          2
`, "groups", "reset-offsets", "billing", "-t", "sessions/alice", "--to-time", "0s", "--execute")
	c.want(`
TOPIC   PARTITION  COMMITTED  NEW
orders  0          -          0
orders  1          -          0
`, "groups", "reset-offsets", "fresh", "-t", "orders", "--to-time", "1h", "--execute")
	c.wantError(exitFailure, "name the topics with --topic", "groups", "reset-offsets", "nobody", "--to-latest")
	c.wantError(exitFailure, "no committed offset that --shift-by could move", "groups", "reset-offsets", "audit", "-t", "orders:1", "--shift-by", "1")
	c.wantError(exitFailure, `topic "nothing" does not exist`, "groups", "reset-offsets", "audit", "-t", "nothing", "--to-latest")

	c.want("Deleted offsets:\nTOPIC           PARTITION\nsessions/alice  0\n", "groups", "delete-offsets", "billing", "--topic", "sessions/alice")
	c.want(`
[
  {
    "topic": "orders",
    "partition": 1
  }
]
`, "groups", "delete-offsets", "billing", "--topic", "orders:1", "-o", "json")
	c.wantError(exitFailure, `group "billing" has no committed offsets of topic "nothing"`, "groups", "delete-offsets", "billing", "--topic", "nothing")
	c.want(`
[
  {
    "name": "billing",
    "state": "Empty",
    "type": "classic",
    "protocol_type": "",
    "protocol": "",
    "epoch": null,
    "assignment_epoch": null,
    "coordinator": 3,
    "total_lag": 4,
    "members": [],
    "partitions": [
      {
        "topic": "orders",
        "partition": 0,
        "committed_offset": 3,
        "end_offset": 3,
        "lag": 0,
        "member_id": null
      },
      {
        "topic": "orders",
        "partition": 1,
        "committed_offset": null,
        "end_offset": 4,
        "lag": 4,
        "member_id": null
      }
    ]
  }
]
`, "groups", "describe", "billing", "-o", "json")

	if out := c.wantError(exitFailure, `group "nobody" does not exist`, "groups", "delete", "nobody", "audit"); out != "group \"audit\" deleted\n" {
		t.Errorf("the other group: %s", out)
	}
	c.wantError(exitFailure, `group "audit" does not exist`, "groups", "describe", "audit")
}

// A group in use is described with its members, and nothing of it can be moved or deleted.
func TestGroupsInUse(t *testing.T) {
	c := startCluster(t)
	c.want("topic \"orders\" created\n", "topics", "create", "orders", "-p", "2")
	c.produce("orders", 0, "a")
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	member := newClient(t, c.address, kgo.ConsumeTopics("orders"), kgo.ConsumerGroup("billing"), kgo.InstanceID("i1"), kgo.ClientID("reader"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit())
	fetches := member.PollFetches(ctx)
	if err := fetches.Err(); err != nil || fetches.NumRecords() != 1 {
		t.Fatal(err)
	}
	if err := member.CommitRecords(ctx, fetches.Records()...); err != nil {
		t.Fatal(err)
	}

	c.want(`
group        billing
state        Stable
type         classic
protocol     consumer cooperative-sticky
coordinator  3
lag          0

MEMBER                                   INSTANCE  CLIENT  HOST       PARTITIONS
i1-00000000-0000-0000-0000-000000000000  i1        reader  127.0.0.1  2

TOPIC   PARTITION  COMMITTED  END  LAG  MEMBER
orders  0          1          1    0    i1-00000000-0000-0000-0000-000000000000
orders  1          -          0    0    i1-00000000-0000-0000-0000-000000000000
`, "groups", "describe", "billing")
	out, err := c.run("groups", "describe", "billing", "--output", "json")
	if err != nil || !strings.Contains(out, `        "instance_id": "i1",
        "client_id": "reader",
        "host": "127.0.0.1",
        "epoch": null,
        "assigned": [
          {
            "topic": "orders",
            "partitions": [
              0,
              1
            ]
          }
        ]`) {
		t.Errorf("%s %v", out, err)
	}
	c.want(`
TOPIC   PARTITION  COMMITTED  NEW
orders  0          1          0

Nothing was moved: add --execute to do it.
`, "groups", "reset-offsets", "billing", "--to-earliest")
	c.wantError(exitFailure, "stop its consumers first", "groups", "reset-offsets", "billing", "--to-earliest", "--execute")
	c.wantError(exitFailure, `group "billing" has members: stop them first`, "groups", "delete", "billing")
	c.wantError(exitFailure, "GROUP_SUBSCRIBED_TO_TOPIC", "groups", "delete-offsets", "billing", "--topic", "orders:0")
	c.wantCommitRefused("billing", "orders")
}

// wantCommitRefused checks what the commit of reset-offsets says if a member has joined since the group was looked up.
func (c *cluster) wantCommitRefused(group, topic string) {
	c.t.Helper()
	s := &session{ctx: c.t.Context(), admin: kadm.NewClient(newClient(c.t, c.address))}
	err := s.commit(offsetReset{Group: group, Partitions: []movedOffset{{Topic: topic}, {Topic: topic, Partition: 1}}})
	checkError(c.t, err, exitFailure, fmt.Sprintf("group %q is in use: stop its consumers first", group), []string{"commit"})
	if err != nil && strings.Contains(err.Error(), "\n") {
		c.t.Errorf("once for each partition: %v", err)
	}
}

// A group whose partitions the broker assigns is described like others, and protected like others while it is in use.
func TestConsumerGroupsInUse(t *testing.T) {
	c := startCluster(t)
	c.want("topic \"orders\" created\n", "topics", "create", "orders", "-p", "2")
	c.produce("orders", 0, "a", "b")
	c.commit("audit", "orders", 2)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	member := newClient(t, c.address, kgo.ConsumeTopics("orders"), kgo.ConsumerGroup("billing"), kgo.ClientID("reader"),
		kgo.Balancers(kgo.CooperativeStickyBalancer()), kgo.ServerSideBalancer(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit())
	fetches := member.PollFetches(ctx)
	if err := fetches.Err(); err != nil || fetches.NumRecords() != 2 {
		t.Fatal(fetches.NumRecords(), err)
	}
	if err := member.CommitRecords(ctx, fetches.Records()[0]); err != nil {
		t.Fatal(err)
	}

	memberID, _ := member.GroupMetadata()
	out, err := c.run("groups", "describe", "billing", "audit")
	if want := strings.ReplaceAll(strings.TrimPrefix(`
group        audit
state        Empty
type         classic
protocol     -
coordinator  3
lag          0

TOPIC   PARTITION  COMMITTED  END  LAG  MEMBER
orders  0          2          2    0    -
orders  1          -          0    0    -

group        billing
state        Stable
type         consumer
protocol     consumer uniform
epoch        1
coordinator  3
lag          1

MEMBER  INSTANCE  CLIENT  HOST  PARTITIONS
<member>  -  reader  127.0.0.1  2

TOPIC   PARTITION  COMMITTED  END  LAG  MEMBER
orders  0          1          2    1    <member>
orders  1          -          0    0    <member>
`, "\n"), "<member>", memberID); err != nil || !slices.Equal(strings.Fields(out), strings.Fields(want)) {
		t.Errorf("%s %v\nwant\n%s", out, err, want)
	}
	out, err = c.run("groups", "describe", "billing", "--output", "json")
	for _, want := range []string{
		`"type": "consumer"`, `"protocol_type": "consumer"`, `"epoch": 1,`, `"assignment_epoch": 1,`, `"total_lag": 1,`, `"client_id": "reader"`,
	} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("%s %v lacks %s", out, err, want)
		}
	}
	c.wantError(exitFailure, `group "billing" is in use (state Stable, 1 members): stop its consumers first`,
		"groups", "reset-offsets", "billing", "--to-earliest", "--execute")
	c.wantCommitRefused("billing", "orders")
	c.wantError(exitFailure, `group "billing" has members: stop them first`, "groups", "delete", "billing")
	c.wantError(exitFailure, "2 errors:\n  group \"nobody\" does not exist\n  group \"somebody\" does not exist", "groups", "describe", "somebody", "billing", "nobody")

	if err := member.LeaveGroupContext(ctx); err != nil {
		t.Fatal(err)
	}
	out, err = c.run("groups", "describe", "billing")
	if want := `
group        billing
state        Empty
type         consumer
protocol     consumer uniform
epoch        2
coordinator  3
lag          1

TOPIC   PARTITION  COMMITTED  END  LAG  MEMBER
orders  0          1          2    1    -
orders  1          -          0    0    -
`; err != nil || out != want[1:] {
		t.Errorf("%s %v\nwant\n%s", out, err, want)
	}
	c.want("TOPIC   PARTITION  COMMITTED  NEW\norders  0          1          2\n",
		"groups", "reset-offsets", "billing", "--to-latest", "--execute")
	c.want("group \"billing\" deleted\n", "groups", "delete", "billing")
}

// Lag that is not known is not taken for none.
func TestUnknownLag(t *testing.T) {
	offset := func(at int64) kadm.OffsetResponse { return kadm.OffsetResponse{Offset: kadm.Offset{At: at}} }
	bound := func(at int64) kadm.ListedOffset { return kadm.ListedOffset{Offset: at} }
	g := foundGroup{groupDescription: groupDescription{Name: "billing"}, subscribed: []string{"fresh"}}
	g.addPartitions(groupOffsets{
		committed: kadm.FetchOffsetsResponses{"billing": {Fetched: kadm.OffsetResponses{
			"orders": {0: offset(3), 1: offset(3), 2: {Err: kerr.UnstableOffsetCommit}, 3: offset(9)},
			"gone":   {0: offset(1)},
		}}},
		starts: kadm.ListedOffsets{"orders": {0: {Err: kerr.NotLeaderForPartition}, 2: bound(0), 3: bound(0)}, "fresh": {0: bound(2), 1: {Err: kerr.NotLeaderForPartition}}},
		ends: kadm.ListedOffsets{"orders": {0: bound(5), 2: bound(5), 3: bound(5)}, "fresh": {0: bound(6), 1: bound(6)},
			"gone": {-1: {Partition: -1, Err: kerr.UnknownTopicOrPartition}}},
	})
	var out strings.Builder
	if err := (output{w: &out}).print(nil, g.tables()...); err != nil {
		t.Fatal(err)
	}
	g.noteErrors(output{w: &out})
	if want := `
lag          ? (incomplete: 6 without the partitions of unknown lag, 4 of 7)

TOPIC   PARTITION  COMMITTED  END  LAG  MEMBER
fresh   0          -          6    4    -
fresh   1          -          6    ?    -
gone    0          1          -    ?    -
orders  0          3          5    2    -
orders  1          3          -    ?    -
orders  2          -          5    ?    -
orders  3          9          5    0    -
group "billing": lag of partition 1 of topic "fresh" is unknown: NOT_LEADER_FOR_PARTITION: This server is not the leader for that topic-partition.
group "billing": lag of partition 0 of topic "gone" is unknown: UNKNOWN_TOPIC_OR_PARTITION: This server does not host this topic-partition.
group "billing": lag of partition 1 of topic "orders" is unknown: the broker has not told its offsets
group "billing": lag of partition 2 of topic "orders" is unknown: UNSTABLE_OFFSET_COMMIT: There are unstable offsets that need to be cleared.
`; !strings.HasSuffix(out.String(), want) || g.TotalLag != nil {
		t.Errorf("%s\nwant\n%s", out.String(), want)
	}
}

// Names of streams may end like a list of partitions.
func TestStreamsNamedLikePartitions(t *testing.T) {
	c := startCluster(t)
	c.produce("sessions/user", 0, "a", "b")
	c.produce("sessions/user:0", 0, "c", "d", "e")
	c.commit("billing", "sessions/user", 1)
	c.commit("billing", "sessions/user:0", 1)
	c.want("TOPIC            PARTITION  START\nsessions/user:0  0          3\n", "topics", "trim", "sessions/user:0", "--to-latest")
	c.want("TOPIC            PARTITION  COMMITTED  NEW\nsessions/user:0  0          1          3\n",
		"groups", "reset-offsets", "billing", "-t", "sessions/user:0", "--to-latest", "--execute")
	c.want("Deleted offsets:\nTOPIC            PARTITION\nsessions/user:0  0\n", "groups", "delete-offsets", "billing", "-t", "sessions/user:0")
	c.want(`
group        billing
state        Empty
type         classic
protocol     -
coordinator  3
lag          1

TOPIC          PARTITION  COMMITTED  END  LAG  MEMBER
sessions/user  0          1          2    1    -
`, "groups", "describe", "billing")
	c.wantError(exitFailure, `stream "sessions/user:1" does not exist`, "topics", "trim", "sessions/user:1", "--to-latest")
}

func TestGoalPlace(t *testing.T) {
	p := place{topic: "orders", start: 10, end: 20, committed: 15, atTime: 12}
	for _, tc := range []struct {
		goal goal
		want int64
		note string
	}{
		{goal{kind: goalEarliest}, 10, ""},
		{goal{kind: goalLatest}, 20, ""},
		{goal{kind: goalTime}, 12, ""},
		{goal{kind: goalOffset, offset: 10}, 10, ""},
		{goal{kind: goalOffset, offset: 20}, 20, ""},
		{goal{kind: goalOffset, offset: 9}, 10, "9 lies before the start, 10"},
		{goal{kind: goalOffset, offset: 21}, 20, "21 lies behind the end, 20"},
		{goal{kind: goalShift, offset: -3}, 12, ""},
		{goal{kind: goalShift, offset: -6}, 10, "9 lies before the start, 10"},
		{goal{kind: goalShift, offset: 6}, 20, "21 lies behind the end, 20"},
	} {
		got, note := tc.goal.place(p)
		if got != tc.want || !strings.HasSuffix(note, tc.note) || (note == "") != (tc.note == "") {
			t.Errorf("%+v: %d, %q", tc.goal, got, note)
		}
	}
}

func TestPlanMoves(t *testing.T) {
	committed := kadm.OffsetResponses{"orders": {0: {Offset: kadm.Offset{At: 4}}, 1: {Offset: kadm.Offset{At: -1}}}}
	places := []place{{topic: "orders", end: 9}, {topic: "orders", partition: 1, end: 9}}
	moves, err := planMoves(places, committed, goal{kind: goalLatest})
	if err != nil || len(moves) != 2 || *moves[0].CommittedOffset != 4 || moves[0].NewOffset != 9 || moves[1].CommittedOffset != nil || moves[1].NewOffset != 9 {
		t.Errorf("%+v, %v", moves, err)
	}
	if _, err := planMoves(places, committed, goal{kind: goalShift, offset: 1}); err == nil || !strings.Contains(err.Error(), `partition 1 of topic "orders"`) {
		t.Errorf("shifting what is not there: %v", err)
	}
}

func TestParseTopicSpec(t *testing.T) {
	for text, want := range map[string]topicSpec{
		"orders":        {topic: "orders"},
		"orders:1":      {"orders", []int32{1}},
		"orders:0,12":   {"orders", []int32{0, 12}},
		"a/b:0":         {topic: "a/b:0"},
		"a:0/b":         {topic: "a:0/b"},
		"a/b:c":         {topic: "a/b:c"},
		"orders:":       {topic: "orders:"},
		"orders:-1":     {topic: "orders:-1"},
		"a/7:30:1":      {topic: "a/7:30:1"},
		"orders:1,x":    {topic: "orders:1,x"},
		"o:99999999999": {topic: "o:99999999999"},
	} {
		if got := parseTopicSpec(text); got.topic != want.topic || !slices.Equal(got.partitions, want.partitions) {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	}
}

func TestParsePast(t *testing.T) {
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"2026-01-02T03:04:05Z": time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), "2026-01-02T03:04:05.5+01:00": time.Date(2026, 1, 2, 2, 4, 5, 5e8, time.UTC),
		"90m": now.Add(-90 * time.Minute), "7d": now.Add(-7 * day), "0s": now,
	} {
		if got, err := parsePast(text, now); err != nil || !got.Equal(want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "yesterday", "2026-01-02", "-1h", "12"} {
		if got, err := parsePast(text, now); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// Names that come from others cannot break the lines of a table or move the cursor of a terminal.
func TestTableCells(t *testing.T) {
	var out strings.Builder
	shown := newTable("NAME", "VALUE")
	shown.add("a\x1b[2Jb\tc\nd", "")
	shown.add("größe", 1)
	if err := (output{w: &out}).print(nil, shown); err != nil {
		t.Fatal(err)
	}
	if want := "NAME       VALUE\na?[2Jb?c?d  -\ngröße      1\n"; strings.Join(strings.Fields(out.String()), " ") != strings.Join(strings.Fields(want), " ") {
		t.Errorf("%q", out.String())
	}
}
