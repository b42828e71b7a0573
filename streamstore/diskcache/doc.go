// Package diskcache keeps immutable byte strings in files of a local disk, within a
// strict limit. It sits between the store's memory cache and the bucket.
//
// It is a cache in the full sense: every failure of the disk, every damaged, missing or
// foreign file is a miss, never an error and never wrong bytes. Nothing is synced. All
// file writes and the look at what a former process left happen in one goroutine of its
// own; callers read files at most, and no lock is held meanwhile.
//
// # Admission
//
// The memory cache in front tells what it takes in (Loaded) and what it drops (Evicted).
// An entry is written to disk when it leaves memory after it was used again there, or
// when it comes from the bucket a second time while it is still remembered. What was
// used once only is remembered by a fingerprint in a ghost list, for as long as it takes
// to drop as many bytes as the disk cache holds. So a scan of cold data writes nothing.
//
// # Eviction
//
// Files, slabs, are written from front to end and removed whole, oldest first. What was
// read since it was written is carried over to the newest slab. Together this is S3-FIFO
// (Yang, Zhang, Qiu, Yue, Rashmi: FIFO Queues are All You Need for Cache Eviction, SOSP
// 2023), with memory as the small queue and the slabs as the main one.
//
// # Memory
//
// An entry costs up to 64 bytes of memory, whatever its size. Their number is bounded
// by one per 32 KiB of the limit, or 65,536 if that is more, so a cache of tiny entries
// holds fewer bytes than its limit. MemoryBound tells the sum.
//
// # Files
//
// A slab is <dir>/<identity>/<number, 8 hex digits>.slab. Everything else in <dir> is
// removed: identities change when the entries of the old one cannot be told from new
// ones any more. Integers are big-endian.
//
//	magic "BRKLSLAB" (8), format version 1 (2), zero (6)
//	then entries back to back:
//	  0   4  magic "BRKX"
//	  4   4  length of the data
//	  8  48  key
//	 56   4  CRC-32C of the data
//	 60   4  CRC-32C of bytes 0 to 59
//	 64      data
//
// At start a slab's entries are found by walking from header to header; the walk ends
// at the first one that does not check out, where a crash has torn the file. The data's
// checksum and the key are checked at each read. Slabs of a former process are never
// appended to.
package diskcache
