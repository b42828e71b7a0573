// Package objstore is the bucket: the object storage that holds the commit log,
// the segments and the checkpoints.
//
// It is thanos-io/objstore, whose configuration format and providers it uses,
// plus what a redo log needs and that package lacks:
//
//   - create-if-absent, the one write there is ([Bucket.Create]),
//   - listings that start after a name and are checked to be in order,
//   - an error vocabulary with "already exists" and "throttled" in it,
//   - attempts with time limits, backoff and metrics around every call,
//   - a probe that proves at start that the bucket keeps its word ([Probe]).
//
// The layers of a bucket made by [Open], from the caller down:
//
//	guard         names, time limits, retries, metrics       guard.go retry.go metrics.go
//	prefixed      puts the prefix in front of every name     prefix.go
//	provider      one of                                     s3.go gcs.go azure.go filesystem.go memory.go
//
// What is assumed of a store, and what the probe checks where a store can be asked:
//
//   - A create with "if absent" is atomic: of any number of creates of one name
//     exactly one wins, and nobody ever sees part of an object.
//   - Reads, and listings, see every create that was answered before they began.
//   - Listings are in ascending byte order of names.
//
// How each provider creates if absent:
//
//	S3          If-None-Match: *, a single PUT (at most 5 GiB)
//	GCS         ifGenerationMatch=0, a single request
//	Azure       If-None-Match: *, Put Blob (at most 5000 MiB)
//	filesystem  temporary file, fsync, link(2), fsync of the directory
//	memory      a mutex
//
// Package faulty, below this one, wraps a bucket to make it misbehave in tests.
package objstore
