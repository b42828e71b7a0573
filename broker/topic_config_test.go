package broker

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/streamstore"
)

func testDefaults(stream bool) *configDefaults {
	o := Options{}
	o.EnsureDefaults()
	return newConfigDefaults(&o, stream)
}

// The table must be consistent with itself, or the defaults that it reports could not be set.
func TestTopicConfigTable(t *testing.T) {
	names := make([]string, len(topicConfigs))
	for i := range topicConfigs {
		def := &topicConfigs[i]
		names[i] = def.name
		if err := def.validate(def.value); err != nil {
			t.Errorf("default of %s: %v", def.name, err)
		}
		if def.doc == "" || def.kind == kmsg.ConfigTypeUnknown || def.check == nil {
			t.Errorf("%s is not described: %+v", def.name, def)
		}
		if ignored := strings.Contains(def.doc, "ccepted and ignored"); ignored && def.honoured {
			t.Errorf("%s is honoured, its doc says otherwise", def.name)
		}
	}
	if !slices.IsSorted(names) || len(topicConfigDefs) != len(names) {
		t.Errorf("names are not in order, or not different: %v", names)
	}
}

func TestTopicConfigValues(t *testing.T) {
	for _, tc := range []struct {
		name    string
		valid   []string
		invalid []string
	}{
		{"cleanup.policy", []string{"delete", "delete,delete", " delete "}, []string{"", "compact", "delete,compact", "x"}},
		{"compression.type", []string{"producer", "uncompressed", "gzip", "zstd"}, []string{"", "GZIP", "brotli"}},
		{"compression.gzip.level", []string{"-1", "1", "9"}, []string{"0", "10", "-2"}},
		{"compression.zstd.level", []string{"-131072", "22"}, []string{"23", "-131073"}},
		{"retention.ms", []string{"-1", "0", maxInt64}, []string{"-2", "", "1.5", "9223372036854775808", "1h"}},
		{"retention.bytes", []string{"-1", "0", maxInt64}, []string{"-2", "x"}},
		{"max.message.bytes", []string{"0", "67108864"}, []string{"-1", "67108865", "2147483647", "x"}},
		{"message.timestamp.type", []string{"CreateTime", "LogAppendTime"}, []string{"createtime", ""}},
		{"message.timestamp.after.max.ms", []string{"0", maxInt64}, []string{"-1"}},
		{"min.cleanable.dirty.ratio", []string{"0", "0.5", "1"}, []string{"-0.1", "1.1", "NaN", "x"}},
		{"min.insync.replicas", []string{"1", "3"}, []string{"0"}},
		{"preallocate", []string{"true", "FALSE"}, []string{"yes", ""}},
		{"remote.storage.enable", []string{"false"}, []string{"true"}},
		{"leader.replication.throttled.replicas", []string{"", "*", "0:1", "0:1, 1:2"}, []string{"0", "a:b", "0:1,*", "-1:0"}},
		{"segment.bytes", []string{"14", "52428800"}, []string{"13"}},
		{"segment.ms", []string{"1"}, []string{"0"}},
	} {
		for _, v := range tc.valid {
			if _, err := testDefaults(false).newConfig(map[string]string{tc.name: v}); err != nil {
				t.Errorf("%s=%q: %v", tc.name, v, err)
			}
		}
		for _, v := range tc.invalid {
			_, err := testDefaults(false).newConfig(map[string]string{tc.name: v})
			if err == nil || err.Code != kafkaproto.ErrInvalidConfig.Code {
				t.Errorf("%s=%q: %v", tc.name, v, err)
				continue
			}
			if !strings.Contains(err.Message, tc.name) || !strings.Contains(err.Message, v) {
				t.Errorf("%s=%q: the message does not name both: %s", tc.name, v, err.Message)
			}
		}
	}
	long := strings.Repeat("0:1,", maxConfigValue/4) + "0:1"
	if _, err := testDefaults(false).newConfig(map[string]string{"leader.replication.throttled.replicas": long}); err == nil || len(err.Message) > 1000 {
		t.Errorf("value of %d bytes: %v", len(long), err)
	}
}

func TestTopicConfigInEffect(t *testing.T) {
	c, err := testDefaults(false).newConfig(map[string]string{
		"message.timestamp.type":          "LogAppendTime",
		"message.timestamp.before.max.ms": "100",
		"max.message.bytes":               "7",
	})
	if err != nil {
		t.Fatal(err)
	}
	if !c.logAppendTime || c.timestampBeforeMs != 100 || c.timestampAfterMs != 3_600_000 || c.maxMessageBytes != 7 || c.retentionMs != 604_800_000 || c.retentionBytes != -1 {
		t.Errorf("%+v", c)
	}
	plain := testDefaults(false).plain
	if plain.logAppendTime || plain.timestampBeforeMs != math.MaxInt64 || plain.maxMessageBytes != defaultMaxMessageBytes {
		t.Errorf("defaults: %+v", plain)
	}
}

func TestRetentionSettings(t *testing.T) {
	for _, tc := range []struct {
		ms, bytes string
		want      streamstore.Settings
	}{
		{"-1", "-1", streamstore.DefaultSettings()},
		{"0", "0", streamstore.Settings{Retention: time.Millisecond, RetentionBytes: 0}},
		{"5000", "10", streamstore.Settings{Retention: 5 * time.Second, RetentionBytes: 10}},
		// More milliseconds than a time.Duration can hold.
		{maxInt64, "-1", streamstore.DefaultSettings()},
		{"9223372036854", "-1", streamstore.Settings{Retention: 9223372036854 * time.Millisecond, RetentionBytes: -1}},
		{"9223372036855", "-1", streamstore.DefaultSettings()},
	} {
		c, err := testDefaults(false).newConfig(map[string]string{"retention.ms": tc.ms, "retention.bytes": tc.bytes})
		if err != nil {
			t.Fatal(err)
		}
		if got := c.settings(); got != tc.want {
			t.Errorf("%s ms, %s bytes: %+v, want %+v", tc.ms, tc.bytes, got, tc.want)
		}
	}
	for _, s := range []streamstore.Settings{streamstore.DefaultSettings(), {Retention: time.Hour, RetentionBytes: -1}, {Retention: -1, RetentionBytes: 0}} {
		if got := testDefaults(true).storedConfig(streamOverrides(&streamstore.StreamInfo{Settings: s})).settings(); got != s {
			t.Errorf("settings %+v came back as %+v", s, got)
		}
	}
}

// A stored override that this release refuses must not keep the broker from starting.
func TestStoredConfigIsLenient(t *testing.T) {
	c := testDefaults(false).storedConfig(map[string]string{"retention.ms": "soon", "removed.later": "1"})
	if c.retentionMs != 604_800_000 || c.value("removed.later") != "1" {
		t.Errorf("%+v", c)
	}
}
