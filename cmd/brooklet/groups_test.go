package main

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
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
    "protocol_type": "",
    "protocol": "",
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
		"a/b:0":         {"a/b", []int32{0}},
		"a/b:c":         {topic: "a/b:c"},
		"orders:":       {topic: "orders:"},
		"orders:-1":     {topic: "orders:-1"},
		"a/7:30:1":      {"a/7:30", []int32{1}},
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
