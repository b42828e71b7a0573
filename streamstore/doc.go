// Package streamstore is the engine: it keeps ordered logs, streams, each with
// dense offsets 0, 1, 2, …, durable on a local disk and in a bucket.
//
// # Data flow
//
//	Append ──> stream (offsets, producers) ──> appendQueue ──> appender ──> Pebble
//	               │                                              │       (tail rows)
//	               └──> tailCache                                 v
//	Read ──> tail in memory ──> tail in Pebble               flusher ──> bucket
//	     └─> extent rows ──> segmentCache ──> bucket              │    (commit log)
//	                                                              └──> Pebble
//	                                                                 (extent rows)
//
// Append gives a batch its offsets under the stream's lock and queues it, so queue
// order is offset order. The appender writes what is queued as one Pebble batch
// with one sync: group commit. The flusher sends the tail to the bucket as numbered
// objects, the commit log, which carries all data and every change of metadata;
// when an object is durable the database gets the extents that find the data there
// and loses the tail rows. The state of a shard is a pure function of its commit
// log, so a lost disk is rebuilt by replaying it (open.go), and a new writer fences
// an old one by taking the next number under a higher epoch (commitlog.go). Checkpoints
// hold the metadata as of a commit, so that only the newest part of the log has to be
// replayed, and kept (checkpoint.go, coldstart.go).
//
// The compactor (compact.go) merges the short runs of many objects into segments, where
// a stream's batches lie together, and deletes objects of which the catalogue
// (catalogue.go) knows no live byte. Its results enter the index with the flusher's
// commits (indexchange.go).
//
// # Words
//
// A record batch is Kafka's RecordBatch v2, the only stored form of records. The
// high watermark is the first offset that readers do not see yet, because it is not
// durable in the sense of Options.Durability. The tail is what is not in the bucket
// yet. An extent is a run of one stream's batches within one object. A transaction
// is a set of metadata changes; it travels through the same queue, tail and log as
// appends and is ordered with them.
//
// # Lock order
//
//	Store.meta (transactions)
//	  stream.mu
//	    streamTableShard.mu | appendQueue.mu | tailCache.mu | Watch.mu | nameWatches.mu | catalogue.mu
//
// Only a transaction holds several streams' locks at a time. The locks of the last
// line are leaves. No lock is held across I/O, except that transactions do point reads
// of the local database under Store.meta.
//
// # Rules that are easy to break
//
//   - Rows n, s and k change when a transaction is appended, rows e, p and g when
//     a commit completes. A row of one set must never be written on the other path:
//     replay orders each set by itself.
//   - A stream whose new state is only in memory must stay pinned until the state
//     is in the database, or an eviction would bring the old state back.
//   - A tail entry's bytes may leave memory only when it is in the database, and it
//     may leave the stream's tail only when its extent is.
//   - Nothing is acknowledged after a failed sync, even if later syncs succeed.
//   - Extents enter the index with the commit that makes their object known, and never
//     again. So an object without a live byte stays dead, for every later writer.
//   - The log number after a hole must not be claimed: a slow upload may still fill
//     the hole and would then come before the claim. Nor may a writer leave a hole
//     below its commits: a claim there would not stop it.
//   - Nothing in the bucket is deleted because of what is not there. What a fenced
//     writer deletes, late as it may be, must be what no new owner can need: see
//     checkpoint.go.
package streamstore
