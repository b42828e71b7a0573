package main

import (
	"strings"
	"testing"
)

func TestConfigsCommands(t *testing.T) {
	c := startCluster(t)
	c.want("stream \"a/b\" created\ntopic \"orders\" created\n", "topics", "create", "orders", "a/b")
	c.want("topic \"orders\" would be changed\n", "configs", "set", "topic", "orders", "retention.ms=7000", "--dry-run")
	c.want("topic \"orders\" changed\n", "configs", "set", "topic", "orders", "retention.ms=86400000", "max.message.bytes=1000")
	c.want(`
{
  "kind": "topic",
  "name": "a/b"
}
`, "configs", "set", "topic", "a/b", "retention.bytes=4096", "--output", "json")
	c.wantError(exitFailure, "(INVALID_CONFIG)", "configs", "set", "topic", "orders", "retention.bytes=many")
	c.wantError(exitFailure, `topic "nothing" does not exist`, "configs", "set", "topic", "nothing", "retention.ms=1")
	c.wantError(exitFailure, "set them when it is started (INVALID_REQUEST)", "configs", "set", "broker", "3", "num.partitions=2")

	list, err := c.run("configs", "list")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"broker  3       node.id ", "topic   orders  max.message.bytes "} {
		if !strings.Contains(list, want) {
			t.Errorf("%q is missing from\n%s", want, list)
		}
	}
	if strings.Contains(list, "a/b") || strings.Contains(list, "default") {
		t.Errorf("the list holds named streams or defaults:\n%s", list)
	}

	for _, flag := range []string{"--dry-run=false", "--dry-run"} {
		c.wantError(exitFailure, "2 errors:\n  topic \"orders\" has no config \"nosuch\"\n  topic \"orders\" has no config \"stream.closed\"",
			"configs", "unset", "topic", "orders", "retention.ms", "nosuch", "stream.closed", flag)
	}
	c.wantError(exitFailure, `broker 3 has no config "nosuch"`, "configs", "unset", "broker", "3", "nosuch")
	c.wantError(exitFailure, `topic "nothing" does not exist`, "configs", "unset", "topic", "nothing", "retention.ms")
	c.want("topic \"orders\" changed\n", "configs", "unset", "topic", "orders", "max.message.bytes", "segment.ms")
	described, err := c.run("configs", "describe", "topic", "orders")
	if err != nil {
		t.Fatal(err)
	}
	lines := map[string]string{}
	for line := range strings.Lines(described) {
		if f := strings.Fields(line); len(f) == 3 {
			lines[f[0]] = f[1] + " " + f[2]
		}
	}
	if lines["CONFIG"] != "VALUE SOURCE" || lines["retention.ms"] != "86400000 topic" || lines["max.message.bytes"] != "1048588 default" {
		t.Errorf("configs of the topic:\n%s", described)
	}
	described, err = c.run("configs", "describe", "topic", "a/b", "-o", "json")
	if err != nil || !strings.Contains(described, `    {
      "name": "retention.bytes",
      "value": "4096",
      "source": "topic",
      "is_default": false
    }`) {
		t.Errorf("configs of the stream: %s %v", described, err)
	}
	for _, args := range [][]string{{"configs", "describe", "broker"}, {"configs", "describe", "broker", "3"}} {
		if described, err = c.run(args...); err != nil || !strings.Contains(described, "node.id") {
			t.Errorf("%v: %s %v", args, described, err)
		}
	}
	c.wantError(exitFailure, `there is no broker "9"`, "configs", "describe", "broker", "9")
	c.wantError(exitFailure, `topic "nothing" does not exist`, "configs", "describe", "topic", "nothing")
}
