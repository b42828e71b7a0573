package kafkaproto

// FindTimestamp returns the first record of batch at or above minOffset whose
// timestamp (milliseconds) is at or after target, with that record's own timestamp.
// Timestamps inside a batch need not rise. Under LogAppendTime every record carries
// the batch's maxTimestamp. ok is false if there is no such record.
//
// Pass the stream's start offset as minOffset, so that trimmed records of a batch
// that is still stored are not found.
//
// Compressed batches are expanded as a stream within the default [IterLimits];
// keys and values are skipped and not held. Errors are those of [RecordIterator].
func FindTimestamp(batch RecordBatch, target, minOffset int64) (offset, timestamp int64, ok bool, err error) {
	if batch.IsLogAppendTime() && batch.MaxTimestamp() < target {
		return 0, 0, false, nil
	}
	err = eachHead(batch, minOffset, func(o, ts int64) bool {
		if ts >= target {
			offset, timestamp, ok = o, ts, true
		}
		return !ok
	})
	if err != nil {
		return 0, 0, false, err
	}
	return offset, timestamp, ok, nil
}

// MaxTimestamp returns the first record of batch at or above minOffset that has the
// largest timestamp. It is otherwise like [FindTimestamp].
func MaxTimestamp(batch RecordBatch, minOffset int64) (offset, timestamp int64, ok bool, err error) {
	constant := batch.IsLogAppendTime()
	err = eachHead(batch, minOffset, func(o, ts int64) bool {
		if !ok || ts > timestamp {
			offset, timestamp, ok = o, ts, true
		}
		return !constant
	})
	if err != nil {
		return 0, 0, false, err
	}
	return offset, timestamp, ok, nil
}

// eachHead calls fn with offset and timestamp of the records at or above minOffset
// until it returns false.
func eachHead(b RecordBatch, minOffset int64, fn func(offset, timestamp int64) bool) error {
	if b.LastOffset() < minOffset {
		return nil
	}
	if b.IsLogAppendTime() && int64(b.RecordCount()) == int64(b.LastOffsetDelta())+1 {
		// No gaps and one timestamp: the answer needs no record.
		fn(max(b.BaseOffset(), minOffset), b.MaxTimestamp())
		return nil
	}
	var it RecordIterator
	it.init(b, IterLimits{}, true)
	defer it.Close()
	for it.Next() {
		if it.rec.Offset >= minOffset && !fn(it.rec.Offset, it.rec.Timestamp) {
			return nil
		}
	}
	return it.Err()
}
