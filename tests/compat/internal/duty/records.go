package duty

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"
)

// epoch is the time of the first record, in milliseconds since 1970.
const epoch = 1_700_000_000_000

// Record is a record as every client can express it.
type Record struct {
	Partition  int32
	Key, Value []byte // a nil key is null; values are never null
	Headers    []Header
	Time       time.Time
}

// Header is a header of a record.
type Header struct {
	Key   string
	Value []byte
}

// RecordAt is record i of the sequence that every program produces: every third one has no key, each has one header
// and comes a second after the one before it. The programs in other languages define the same sequence.
func RecordAt(i int) Record {
	r := Record{
		Value:   []byte(fmt.Sprintf("välue-%d-%s", i, strings.Repeat("x", i%50))),
		Headers: []Header{{"n", fmt.Append(nil, i)}},
		Time:    TimeOf(i),
	}
	if i%3 != 0 {
		r.Key = fmt.Appendf(nil, "key-%d", i)
	}
	return r
}

// TimeOf is the timestamp of record i.
func TimeOf(i int) time.Time { return time.UnixMilli(epoch + 1000*int64(i)) }

// Records returns records first to end-1 of the sequence, all for partition 0.
func Records(first, end int) []Record {
	var records []Record
	for i := first; i < end; i++ {
		records = append(records, RecordAt(i))
	}
	return records
}

// Spread deals records out to partitions in turn.
func Spread(records []Record, partitions int32) []Record {
	for i := range records {
		records[i].Partition = int32(i) % partitions
	}
	return records
}

// Lacks names what a client cannot express in records.
type Lacks struct{ Headers, Times bool }

// Compare reports the first difference between the records that were read and those that were written.
func Compare(got, want []Record, lacks Lacks) error {
	for i := range min(len(got), len(want)) {
		g, w := got[i], want[i]
		switch {
		case !bytes.Equal(g.Value, w.Value):
			return fmt.Errorf("record %d has value %q, want %q", i, g.Value, w.Value)
		case !bytes.Equal(g.Key, w.Key):
			return fmt.Errorf("record %d has key %q, want %q", i, g.Key, w.Key)
		case !lacks.Times && g.Time.UnixMilli() != w.Time.UnixMilli():
			return fmt.Errorf("record %d has timestamp %d, want %d", i, g.Time.UnixMilli(), w.Time.UnixMilli())
		case !lacks.Headers && !slices.EqualFunc(g.Headers, w.Headers, equalHeaders):
			return fmt.Errorf("record %d has headers %q, want %q", i, g.Headers, w.Headers)
		}
	}
	if len(got) != len(want) {
		return fmt.Errorf("read %d records, want %d", len(got), len(want))
	}
	return nil
}

func equalHeaders(a, b Header) bool { return a.Key == b.Key && bytes.Equal(a.Value, b.Value) }

// CompareSets is Compare for records that were read from several partitions, by their values alone.
func CompareSets(got, want []Record) error {
	count := make(map[string]int)
	for _, r := range got {
		count[string(r.Value)]++
	}
	for _, r := range want {
		switch n := count[string(r.Value)]; n {
		case 0:
			return fmt.Errorf("record %q was not read", r.Value)
		case 1:
			delete(count, string(r.Value))
		default:
			return fmt.Errorf("record %q was read %d times", r.Value, n)
		}
	}
	for value := range count {
		return fmt.Errorf("read record %q, which was not written just now", value)
	}
	return nil
}
