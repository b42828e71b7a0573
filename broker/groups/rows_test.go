package groups

import (
	"bytes"
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
)

// Names that are alike must not share keys, and every key can be read back.
func TestOffsetKeys(t *testing.T) {
	seen := map[string][]string{}
	names := []string{"", "a", "a/b", "a%2Fb", "a%2fb", "a%", "%", "/", "//", "%25", "ä", "\x00\xff", "a/b/0"}
	for _, group := range names {
		for _, topic := range names {
			for _, partition := range []int32{0, 1, 10} {
				key := string(offsetKey(group, topic, partition))
				if other, ok := seen[key]; ok {
					t.Errorf("%q %q %d has the key of %q", group, topic, partition, other)
				}
				seen[key] = []string{group, topic}
				rest := bytes.TrimPrefix([]byte(key), offsetsKey(group))
				gotTopic, gotPartition, err := parseOffsetKey(rest)
				if err != nil || gotTopic != topic || gotPartition != partition {
					t.Errorf("%q reads as %q %d, %v", key, gotTopic, gotPartition, err)
				}
			}
		}
	}
	if got := string(offsetKey("g/1", "sessions/alice", 0)); got != "group-offset/g%2F1/sessions%2Falice/0" {
		t.Errorf("key %q", got)
	}
	for _, bad := range []string{"", "topic", "topic/", "topic/x", "topic/01", "topic/+1", "topic/1/2", "topic/2147483648", "%2/0", "%zz/0"} {
		if _, _, err := parseOffsetKey([]byte(bad)); !errors.Is(err, errBadRow) {
			t.Errorf("%q: error %v", bad, err)
		}
	}
}

var exampleOffset = offsetRow{offset: 0x0102030405060708, leaderEpoch: -1, committed: time.UnixMilli(0x11223344), topicID: [16]byte{0xaa, 15: 0xbb}, metadata: "note"}

// The layout, byte by byte.
func TestOffsetRow(t *testing.T) {
	const golden = "01" + "0102030405060708" + "ffffffff" + "0000000011223344" + "aa0000000000000000000000000000bb" + "6e6f7465"
	if got := hex.EncodeToString(exampleOffset.encode()); got != golden {
		t.Errorf("row %s\nwant %s", got, golden)
	}
	got, err := decodeOffsetRow(exampleOffset.encode())
	if err != nil || got != exampleOffset {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{"", "\x02", "\x01", strings.Repeat("\x01", offsetRowSize-1)} {
		if _, err := decodeOffsetRow([]byte(bad)); !errors.Is(err, errBadRow) {
			t.Errorf("%q: error %v", bad, err)
		}
	}
}

func exampleGroup() groupRow {
	return groupRow{
		since: time.UnixMilli(0x11223344), generation: 258, protocolType: "consumer", protocol: "p", leader: "a",
		members: []memberRow{
			{id: "a", clientID: "c", clientHost: "/h", sessionTimeout: 10 * time.Second, rebalanceTimeout: time.Minute,
				protocols: []Protocol{{"p", []byte("m")}, {"q", []byte{}}}, assignment: []byte("x")},
			{id: "b", instanceID: "i", sessionTimeout: time.Millisecond, rebalanceTimeout: 0, protocols: []Protocol{{"p", []byte("n")}}, assignment: []byte{}},
		},
	}
}

func TestGroupRow(t *testing.T) {
	row := exampleGroup()
	const golden = "01" + "0000000011223344" + "00000102" + "08636f6e73756d6572" + "0170" + "0161" + "02" +
		"0161" + "00" + "0163" + "022f68" + "904e" + "e0d403" + "02" + "0170" + "016d" + "0171" + "00" + "0178" +
		"0162" + "0169" + "00" + "00" + "01" + "00" + "01" + "0170" + "016e" + "00"
	if got := hex.EncodeToString(row.encode()); got != golden {
		t.Errorf("row %s\nwant %s", got, golden)
	}
	got, err := decodeGroupRow(row.encode())
	if err != nil || !reflect.DeepEqual(got, row) {
		t.Errorf("%+v, %v", got, err)
	}
	empty := groupRow{since: row.since, generation: 3}
	if got, err = decodeGroupRow(empty.encode()); err != nil || !reflect.DeepEqual(got, empty) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestGroupRowErrors(t *testing.T) {
	row := exampleGroup()
	whole := row.encode()
	for n := range whole {
		if _, err := decodeGroupRow(whole[:n]); !errors.Is(err, errBadRow) {
			t.Errorf("cut to %d bytes: error %v", n, err)
		}
	}
	change := func(edit func(*groupRow)) []byte {
		row := exampleGroup()
		edit(&row)
		return row.encode()
	}
	for name, bad := range map[string][]byte{
		"longer":          append(whole[:len(whole):len(whole)], 0),
		"newer version":   append([]byte{2}, whole[1:]...),
		"same member":     change(func(r *groupRow) { r.members[1].id = "a" }),
		"same instance":   change(func(r *groupRow) { r.members[0].instanceID = "i" }),
		"no such leader":  change(func(r *groupRow) { r.leader = "c" }),
		"protocol":        change(func(r *groupRow) { r.protocol = "q" }),
		"session timeout": change(func(r *groupRow) { r.members[0].sessionTimeout = 1 << 31 * time.Millisecond }),
		"huge count":      append(change(func(r *groupRow) { r.members = nil })[:26], 0xff, 0xff, 0xff, 0xff, 0x0f),
	} {
		if _, err := decodeGroupRow(bad); !errors.Is(err, errBadRow) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// Whatever can be decoded is encoded again to rows that decode alike, and can be a group.
func FuzzRows(f *testing.F) {
	row := exampleGroup()
	f.Add(row.encode())
	f.Add(exampleOffset.encode())
	f.Add([]byte("topic%2F/7"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := decodeGroupRow(b); err == nil {
			again, err := decodeGroupRow(r.encode())
			if err != nil || !reflect.DeepEqual(r, again) {
				t.Errorf("%+v\n%+v\n%v", r, again, err)
			}
			g := &group{c: &Coordinator{m: newMetrics(nil)}}
			g.restore(&r)
			if len(r.members) > 0 && g.chooseProtocol() == "" && r.protocol != "" {
				t.Errorf("no protocol: %+v", r)
			}
		}
		if r, err := decodeOffsetRow(b); err == nil && !bytes.Equal(r.encode(), b) {
			t.Errorf("%x is encoded as %x", b, r.encode())
		}
		if topic, partition, err := parseOffsetKey(b); err == nil && !bytes.HasSuffix(offsetKey("", topic, partition), append([]byte("//"), b...)) {
			t.Errorf("%q reads as %q %d", b, topic, partition)
		}
	})
}
