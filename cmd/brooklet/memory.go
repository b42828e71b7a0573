package main

import (
	"bufio"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"

	"go.uber.org/zap"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/streamstore"
)

// memorySizes are the settings that decide how much memory the broker uses, in bytes. Zero means derived.
type memorySizes struct {
	tailCache, segmentCache, fetch, request, blockCache, http, compaction int64

	frame     int64 // the largest request, which request must have room for
	diskCache int64 // bytes on disk; their index is in memory
}

// memoryPart is one of the sizes and the rule for its default.
type memoryPart struct {
	name  string
	size  *int64
	share float64 // of what the caches may have together, beyond the least
	most  int64   // the default never exceeds it
	least int64   // and nothing may fall below it
	usage string
}

func (m *memorySizes) parts() []memoryPart {
	return []memoryPart{
		{"tail-cache-bytes", &m.tailCache, 1. / 6, 256 * mib, 8 * mib, "`BYTES` of newly appended records kept in memory for readers and for the next flush"},
		{"segment-cache-bytes", &m.segmentCache, 1. / 6, 256 * mib, 8 * mib, "`BYTES` of records read from the bucket that are kept in memory"},
		{"fetch-memory-bytes", &m.fetch, 1. / 6, 256 * mib, 8 * mib, "`BYTES` that all fetch replies under way may hold"},
		{"request-memory-bytes", &m.request, 1. / 4, gib, requestMemoryFor(m.frame), "`BYTES` that all requests and responses under way may hold"},
		{"block-cache-bytes", &m.blockCache, 1. / 24, 512 * mib, 4 * mib, "`BYTES` of cache of the local database"},
		{"http-memory-bytes", &m.http, 1. / 12, 128 * mib, 16 * mib, "`BYTES` that all request bodies and replies of the stream API over HTTP may hold; one takes an eighth of it at most"},
		{"compaction-memory-bytes", &m.compaction, 1. / 8, 192 * mib, 16 * mib, "`BYTES` that compaction may use; it makes segments of a third of that size"},
	}
}

// leastRequest is the least memory for requests, whatever their size.
const leastRequest = 64 * mib

// requestMemoryFor returns the least memory for requests of up to frame bytes.
func requestMemoryFor(frame int64) int64 {
	each, _ := kafkaproto.FrameLimits(leastRequest)
	return max(leastRequest, frame*(leastRequest/each))
}

func (m *memorySizes) options() []*option {
	var options []*option
	for _, p := range m.parts() {
		o := bytesOption(p.name, p.size, p.most, p.least, maxCache, p.usage)
		options = append(options, derived(o, p.size, "from the memory limit, at most "+formatBytes(p.most)))
	}
	return options
}

// maxCache is the largest size that can be set. Sums of sizes stay far below 2^63.
const maxCache = 1024 * gib

// Memory that has no setting of its own.
const (
	// memTables: the database fills one memtable of 64 MiB while up to three others are on their way to disk.
	memTables = 256 * mib
	// runtimeMemory: the program itself and its small structures.
	runtimeMemory = 64 * mib
	// buffersPerFlush: an object is built while its predecessor is uploaded.
	buffersPerFlush = 2
)

// fixedMemory is what no setting of this page governs. Flush buffers grow with --flush-bytes.
func fixedMemory(flushBytes int64) int64 {
	return memTables + runtimeMemory + buffersPerFlush*flushBytes
}

func (m *memorySizes) total() (sum int64) {
	for _, p := range m.parts() {
		sum += *p.size
	}
	return sum
}

// complete gives the sizes that are not set their share of what is left, and checks that all fit into the limit
// together. Sizes that nobody set are never the reason of an error: the broker starts, with a warning, on a machine
// that is too small for the least ones.
func (m *memorySizes) complete(limit memoryLimit, flushBytes int64) error {
	fixed := fixedMemory(flushBytes) + streamstore.DiskCacheMemory(m.diskCache)
	set := m.given()
	m.derive(limit.bytes - fixed - m.total())
	if fixed+m.total() <= limit.bytes || len(set) == 0 {
		return nil
	}
	return fmt.Errorf("%s: together with the other caches and %s for the database, flushes and the index of --disk-cache-bytes that is %s, but %s allows %s: lower these sizes, or raise the limit",
		strings.Join(set, ", "), approximately(fixed), approximately(fixed+m.total()), limit.source, approximately(limit.bytes))
}

// given lists the sizes that are set, as a person would write them.
func (m *memorySizes) given() (set []string) {
	for _, p := range m.parts() {
		if *p.size != 0 {
			set = append(set, fmt.Sprintf("--%s %s", p.name, formatBytes(*p.size)))
		}
	}
	return set
}

// derive divides available among the sizes that are not set: each gets its least, and its share of the rest.
func (m *memorySizes) derive(available int64) {
	for _, p := range m.parts() {
		if *p.size == 0 {
			available -= p.least
		}
	}
	for _, p := range m.parts() {
		if *p.size == 0 {
			share := int64(p.share*float64(max(available, 0))) / mib * mib
			*p.size = min(p.least+share, p.most)
		}
	}
}

// checkAmount warns of a limit that the sizes exceed although they are the least ones.
func (m *memorySizes) checkAmount(limit memoryLimit, flushBytes int64) error {
	sum := fixedMemory(flushBytes) + streamstore.DiskCacheMemory(m.diskCache) + m.total()
	if sum <= limit.bytes {
		return nil
	}
	return fmt.Errorf("%s allows %s, but under load the broker needs %s: it may be killed when it is busy", limit.source, approximately(limit.bytes), approximately(sum))
}

// approximately writes a size for people.
func approximately(n int64) string { return formatBytes(max(n/mib, 1) * mib) }

func (m *memorySizes) fields() []zap.Field {
	var fields []zap.Field
	for _, p := range m.parts() {
		fields = append(fields, zap.String(strings.ReplaceAll(p.name, "-", "_"), formatBytes(*p.size)))
	}
	return fields
}

// memoryLimit is the memory that this process may use.
type memoryLimit struct {
	bytes  int64
	source string // who says so
}

// findMemoryLimit returns the smallest of the Go memory limit (GOMEMLIMIT), the limits of the process's control groups
// (version 2) and the machine's memory. root is the file system.
func findMemoryLimit(root fs.FS, goLimit int64) memoryLimit {
	limit := memoryLimit{math.MaxInt64, "the machine"}
	lower := func(bytes int64, source string) {
		if bytes > 0 && bytes < limit.bytes {
			limit = memoryLimit{bytes, source}
		}
	}
	lower(machineMemory(root), "the machine's memory")
	lower(cgroupLimit(root), "the control group (memory.max)")
	lower(goLimit, "GOMEMLIMIT")
	return limit
}

// machineMemory is the total of /proc/meminfo, 0 if it is not known.
func machineMemory(root fs.FS) int64 {
	file, err := root.Open("proc/meminfo")
	if err != nil {
		return 0
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) == 3 && fields[0] == "MemTotal:" {
			n, _ := strconv.ParseInt(fields[1], 10, 64) // 0 if unreadable
			return n * kib
		}
	}
	return 0
}

// cgroupLimit is the least memory.max of the process's control group and those above it, 0 if there is none. In a
// container the group is the root of what can be seen.
func cgroupLimit(root fs.FS) int64 {
	text, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0
	}
	var least int64
	for line := range strings.Lines(string(text)) {
		group, ok := strings.CutPrefix(strings.TrimSpace(line), "0::/")
		if !ok {
			continue // a hierarchy of version 1
		}
		for dir := path.Join("sys/fs/cgroup", group); dir != "sys/fs"; dir = path.Dir(dir) {
			if n := readLimit(root, path.Join(dir, "memory.max")); n > 0 && (least == 0 || n < least) {
				least = n
			}
		}
	}
	return least
}

// readLimit reads a number, 0 if there is none (the word max, or no such file).
func readLimit(root fs.FS, name string) int64 {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n
}

// goMemoryLimit is what GOMEMLIMIT says, 0 if it says nothing.
func goMemoryLimit() int64 {
	if limit := debug.SetMemoryLimit(-1); limit != math.MaxInt64 {
		return limit
	}
	return 0
}

// softLimitShare of the memory limit is what the garbage collector aims at. The rest is for what it does not see.
const softLimitShare = 0.9

// limitGarbage makes the garbage collector work harder as memory gets scarce, unless GOMEMLIMIT is set already.
func limitGarbage(limit memoryLimit) {
	if _, set := os.LookupEnv("GOMEMLIMIT"); !set && limit.bytes != math.MaxInt64 {
		debug.SetMemoryLimit(int64(softLimitShare * float64(limit.bytes)))
	}
}
