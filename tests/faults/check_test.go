package faults

import (
	"context"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// check holds the broker to all that was said, after a restart in order, and again on an empty disk, where it must begin
// with a checkpoint. Then the bucket is checked from outside.
func (r *round) check(writers []*writer, trim *trimmer, hots []*hot, churn *churn) {
	r.t.Helper()
	r.node().Stop()
	r.node().Start()
	r.serving()
	r.checkWriters(writers, trim)
	for _, h := range hots {
		h.check(r.readAll(h.name, 0))
	}
	churn.check()
	if r.sc.durability == "remote" {
		r.node().Kill()
	} else {
		r.node().Stop()
	}
	r.loseDisk()
	r.node().Spawn()
	before := r.rebuilt
	r.ready()
	if r.rebuilt == before {
		r.fault("a start on an empty disk has not begun with a checkpoint")
	}
	r.checkWriters(writers, trim)
	churn.check()
	r.node().Stop()
	r.checkBucket()
}

func (r *round) checkWriters(writers []*writer, trim *trimmer) {
	r.t.Helper()
	for _, w := range writers {
		for p := range partitions[w.topic] {
			records := r.readAll(w.topic, int32(p))
			if w.topic == trimmedTopic {
				r.checkTrimmed(w, trim, records)
			} else {
				r.checkRecords(w, int32(p), records)
			}
		}
	}
}

// checkRecords checks a partition that was not trimmed.
func (r *round) checkRecords(w *writer, p int32, records []*kgo.Record) {
	name := partitionName(w.topic, p)
	numbers := make([]int, len(records))
	for i, rec := range records {
		if rec.Offset != int64(i) {
			r.fault("%s: offset %d is the record after %d", name, rec.Offset, i-1)
			return
		}
		n, err := r.journal.note(rec)
		if err != nil {
			r.fault("%v", err)
		}
		if numbers[i] = n; n >= w.sent[p] {
			r.fault("%s: record %d is there, but %d were sent", name, n, w.sent[p])
		}
	}
	for n, offset := range w.ends[p] {
		switch {
		case offset < 0: // it may be there or not
		case offset >= int64(len(numbers)):
			r.fault("%s: record %d was acknowledged at offset %d, but there are only %d", name, n, offset, len(numbers))
		case numbers[offset] != n:
			r.fault("%s: record %d was acknowledged at offset %d, but record %d is there", name, n, offset, numbers[offset])
		}
	}
	if seen := r.journal.end(name); seen > int64(len(records)) {
		r.fault("%s: consumers have seen %d records, but there are only %d", name, seen, len(records))
	}
	if w.exact && len(records) != w.sent[p] {
		r.fault("%s: %d records, %d were sent", name, len(records), w.sent[p])
	}
}

func (r *round) checkTrimmed(w *writer, trim *trimmer, records []*kgo.Record) {
	start := int64(w.sent[0])
	if len(records) > 0 {
		start = records[0].Offset
	}
	if start < trim.least || start > trim.most {
		r.fault("%s: the first record is %d; trims to %d were acknowledged, and to %d asked for", trimmedTopic, start, trim.least, trim.most)
	}
	for i, rec := range records {
		if n, err := numberOf(rec.Topic, rec.Partition, rec.Value); err != nil || rec.Offset != start+int64(i) || n != int(rec.Offset) {
			r.fault("%s: offset %d has record %d, %d places after the start %d (%v)", trimmedTopic, rec.Offset, n, i, start, err)
		}
	}
	if end := start + int64(len(records)); end != int64(w.sent[0]) {
		r.fault("%s: ends at %d, %d records were sent", trimmedTopic, end, w.sent[0])
	}
}

// readAll returns what a partition has, from its start to its high watermark.
func (r *round) readAll(topic string, p int32) []*kgo.Record {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	client := r.client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {p: kgo.NewOffset().AtStart()}}),
		kgo.FetchMaxWait(100*time.Millisecond))
	defer client.Close()
	offsets := func(list func(context.Context, ...string) (kadm.ListedOffsets, error)) int64 {
		listed, err := list(ctx, topic)
		if err == nil {
			err = listed.Error()
		}
		offset, ok := listed.Lookup(topic, p)
		if err != nil || !ok {
			r.t.Fatalf("asking for the offsets of %s/%d: %v", topic, p, err)
		}
		return offset.Offset
	}
	admin := kadm.NewClient(client)
	start, end := offsets(admin.ListStartOffsets), offsets(admin.ListEndOffsets)
	var records []*kgo.Record
	for int64(len(records)) < end-start {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			r.t.Fatalf("reading %s/%d, after %d of %d records: %v", topic, p, len(records), end-start, err)
		}
		records = slices.AppendSeq(records, fetches.RecordsAll())
	}
	if len(records) > 0 && records[0].Offset != start {
		r.fault("%s/%d: the first record is %d, the start offset %d", topic, p, records[0].Offset, start)
	}
	return records
}
