package duty

import (
	"strings"
	"testing"
	"time"
)

func TestCompareFindsEveryDifference(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(records []Record) []Record
		lacks  Lacks
		want   string // part of the error, empty for none
	}{
		{"same", func(r []Record) []Record { return r }, Lacks{}, ""},
		{"one missing", func(r []Record) []Record { return r[:len(r)-1] }, Lacks{}, "read 9 records, want 10"},
		{"one twice", func(r []Record) []Record { return append(r, r[0]) }, Lacks{}, "read 11 records, want 10"},
		{"order", func(r []Record) []Record { r[3], r[4] = r[4], r[3]; return r }, Lacks{}, "record 3 has value"},
		{"value", func(r []Record) []Record { r[2].Value = []byte("other"); return r }, Lacks{}, "record 2 has value"},
		{"key", func(r []Record) []Record { r[3].Key = []byte("key-3"); return r }, Lacks{}, "record 3 has key"},
		{"time", func(r []Record) []Record { r[5].Time = r[5].Time.Add(time.Millisecond); return r }, Lacks{}, "record 5 has timestamp"},
		{"time that cannot be set", func(r []Record) []Record { r[5].Time = time.Time{}; return r }, Lacks{Times: true}, ""},
		{"header", func(r []Record) []Record { r[9].Headers = nil; return r }, Lacks{}, "record 9 has headers"},
		{"header that cannot be set", func(r []Record) []Record { r[9].Headers = nil; return r }, Lacks{Headers: true}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			expectError(t, Compare(test.change(Records(0, 10)), Records(0, 10), test.lacks), test.want)
		})
	}
}

func TestCompareSets(t *testing.T) {
	want := Records(0, 10)
	reversed := append(Records(5, 10), Records(0, 5)...)
	expectError(t, CompareSets(reversed, want), "")
	expectError(t, CompareSets(Records(0, 9), want), "was not read")
	expectError(t, CompareSets(append(Records(0, 10), RecordAt(4)), want), "was read 2 times")
	expectError(t, CompareSets(Records(0, 11), want), "which was not written")
}

func expectError(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Fatalf("unexpected error %v", err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Fatalf("the error is %v, want one with %q", err, want)
	}
}

func TestSpread(t *testing.T) {
	count := make(map[int32]int)
	for _, r := range Spread(Records(0, 40), Partitions) {
		count[r.Partition]++
	}
	for p := range int32(Partitions) {
		if count[p] != 40/Partitions {
			t.Errorf("partition %d gets %d of 40 records", p, count[p])
		}
	}
}
