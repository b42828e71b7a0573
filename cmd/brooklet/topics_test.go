package main

import (
	"strings"
	"testing"
)

func TestTopicsCommands(t *testing.T) {
	c := startCluster(t)
	c.want("[]\n", "topics", "list", "--output", "json")
	c.want("topic \"orders\" would be created\n", "topics", "create", "orders", "--dry-run")
	c.want("topic \"orders\" created\n", "topics", "create", "orders", "--partitions", "2", "--config", "retention.ms=5000000",
		"--config", "leader.replication.throttled.replicas=0:3,1:3")
	c.want(`
[
  {
    "name": "audit",
    "id": "<id>",
    "partitions": 1
  },
  {
    "name": "sessions/alice",
    "id": "<id>",
    "partitions": 1
  }
]
`, "topics", "create", "sessions/alice", "audit", "-p", "-1", "-o", "json")
	if out := c.wantError(exitFailure, `topic "audit": topic "audit" already exists (TOPIC_ALREADY_EXISTS)`, "topics", "create", "audit", "bills"); out != "topic \"bills\" created\n" {
		t.Errorf("the other topic: %s", out)
	}

	c.produce("orders", 1, "a", "b", "c")
	c.produce("sessions/alice", 0, "a", "b")
	c.want(`
TOPIC   PARTITIONS  ID
audit   1           <id>
bills   1           <id>
orders  2           <id>
`, "topics", "list")
	c.want(`
topic    orders
id       <id>
configs  leader.replication.throttled.replicas=0:3,1:3 retention.ms=5000000

PARTITION  LEADER  START  END  RECORDS  BYTES
0          3       0      0    0        0
1          3       0      3    3        207

topic    sessions/alice
id       <id>
configs  -

PARTITION  LEADER  START  END  RECORDS  BYTES
0          3       0      2    2        138
`, "topics", "describe", "sessions/alice", "orders")
	if out := c.wantError(exitFailure, `stream "no/such" does not exist`, "topics", "describe", "no/such", "audit", "-o", "json"); out != `[
  {
    "name": "audit",
    "id": "<id>",
    "internal": false,
    "configs": {},
    "partitions": [
      {
        "partition": 0,
        "leader": 3,
        "start_offset": 0,
        "end_offset": 0,
        "bytes": 0
      }
    ]
  }
]
` {
		t.Errorf("the other topic: %s", out)
	}

	c.want("topic \"orders\" would be extended to 4 partitions\n", "topics", "alter", "orders", "--partitions", "4", "--dry-run")
	c.want("topic \"orders\" extended to 3 partitions\n", "topics", "add-partitions", "orders", "-p", "3")
	c.wantError(exitFailure, "partitions cannot be taken away (INVALID_PARTITIONS)", "topics", "alter", "orders", "-p", "2")

	c.want("topic \"audit\" deleted\nstream \"sessions/alice\" deleted\n", "topics", "delete", "sessions/alice", "audit")
	c.wantError(exitFailure, `stream "sessions/alice" does not exist`, "topics", "delete", "sessions/alice")
	c.wantError(exitFailure, "2 errors:\n  topic \"x\" does not exist\n  topic \"y\" does not exist", "topics", "describe", "x", "y")
	c.wantError(exitFailure, "5 errors:\n  topic \"a\" does not exist\n  topic \"b\" does not exist\n  topic \"c\" does not exist\n"+
		"  topic \"d\" does not exist\n  topic \"e\" does not exist", "topics", "delete", "d", "a", "e", "c", "b")
}

func TestTopicsTrim(t *testing.T) {
	c := startCluster(t)
	c.want("topic \"orders\" created\n", "topics", "create", "orders", "-p", "2")
	c.produce("orders", 0, "a", "b", "c")
	c.produce("orders", 1, "a", "b", "c", "d")
	c.produce("sessions/alice", 0, "a", "b")
	c.want(`
TOPIC   PARTITION  START
orders  0          2
orders  1          2

Nothing was deleted: this was a dry run.
`, "topics", "trim", "orders", "--to-offset", "2", "--dry-run")
	for _, flag := range []string{"--dry-run=false", "--dry-run"} {
		out := c.wantError(exitFailure, `partition 0 of topic "orders" ends at 3, before 4: nothing was deleted; --to-latest deletes all records`,
			"topics", "trim", "orders", "--to-offset", "4", flag)
		if strings.Contains(out, "START") {
			t.Errorf("%s: %s", flag, out)
		}
	}
	if out := c.wantError(exitFailure, "ends at 3", "topics", "trim", "orders", "--to-offset", "4", "-o", "json"); out != `[
  {
    "topic": "orders",
    "partition": 0,
    "start_offset": 0,
    "error": "partition 0 of topic \"orders\" ends at 3, before 4: nothing was deleted; --to-latest deletes all records"
  },
  {
    "topic": "orders",
    "partition": 1,
    "start_offset": 0,
    "error": "nothing was deleted, because other partitions end before the offset"
  }
]
` {
		t.Errorf("what lies behind the end: %s", out)
	}
	c.want(`
[
  {
    "topic": "orders",
    "partition": 1,
    "start_offset": 2
  }
]
`, "topics", "trim", "orders:1", "--to-offset", "2", "-o", "json")
	c.want(`
TOPIC   PARTITION  START
orders  1          2
topic "orders", partition 1: 1 lies before the start, 2
`, "topics", "trim", "orders:1", "--to-offset", "1")
	c.want(`
TOPIC   PARTITION  START
orders  0          3
orders  1          4
`, "topics", "delete-records", "orders", "--to-time", "0s")
	c.want(`
TOPIC           PARTITION  START
sessions/alice  0          2
`, "topics", "trim", "sessions/alice", "--to-latest")
	c.want(`
TOPIC           PARTITION  START
sessions/alice  0          2
`, "topics", "trim", "sessions/alice", "--to-time", "1h")
	c.wantError(exitFailure, `partition 7 of topic "orders" does not exist`, "topics", "trim", "orders:7", "--to-latest")
	c.wantError(exitFailure, `topic "nothing" does not exist`, "topics", "trim", "nothing:1", "--to-latest")
}
