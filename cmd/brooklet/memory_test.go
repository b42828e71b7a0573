package main

import (
	"math"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/brookletmq/brooklet/kafkaproto"
)

const testFlushBytes = 32 * mib

func TestMemoryDefaults(t *testing.T) {
	for _, c := range []struct {
		limit int64
		want  memorySizes
	}{
		{4 * gib, memorySizes{256 * mib, 256 * mib, 256 * mib, 961 * mib, 153 * mib, 128 * mib, 192 * mib, 0, 0}},
		{64 * gib, memorySizes{256 * mib, 256 * mib, 256 * mib, gib, 512 * mib, 128 * mib, 192 * mib, 0, 0}},
		{gib, memorySizes{94 * mib, 94 * mib, 94 * mib, 193 * mib, 25 * mib, 59 * mib, 80 * mib, 0, 0}},
		{256 * mib, memorySizes{8 * mib, 8 * mib, 8 * mib, 64 * mib, 4 * mib, 16 * mib, 16 * mib, 0, 0}},
	} {
		var m memorySizes
		limit := memoryLimit{c.limit, "the test"}
		if err := m.complete(limit, testFlushBytes); err != nil {
			t.Fatal(err)
		}
		if m != c.want {
			t.Errorf("limit %s: %+v, want %+v", formatBytes(c.limit), m, c.want)
		}
		if err := m.checkAmount(limit, testFlushBytes); (err != nil) != (c.limit < gib) {
			t.Errorf("limit %s: warning %v", formatBytes(c.limit), err)
		}
	}
}

// Whatever is set alone, and to whatever fits, the others shrink so that all fit together.
func TestMemoryDefaultsMakeRoom(t *testing.T) {
	for i := range new(memorySizes).parts() {
		for _, limit := range []int64{gib, 2 * gib, 8 * gib} {
			var m memorySizes
			part := m.parts()[i]
			*part.size = limit - fixedMemory(testFlushBytes) - 128*mib // the others take 124 MiB at least
			err := m.complete(memoryLimit{limit, "the test"}, testFlushBytes)
			if err != nil {
				t.Errorf("%s of %s: %v", part.name, formatBytes(limit), err)
			}
			for _, p := range m.parts() {
				if *p.size < p.least {
					t.Errorf("%s is %d although %s is set", p.name, *p.size, part.name)
				}
			}
		}
	}
}

func TestMemoryThatDoesNotFit(t *testing.T) {
	m := memorySizes{tailCache: 3 * gib, blockCache: 2 * gib}
	err := m.complete(memoryLimit{4 * gib, "GOMEMLIMIT"}, testFlushBytes)
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"--tail-cache-bytes 3GiB", "--block-cache-bytes 2GiB", "GOMEMLIMIT allows 4GiB", "lower these sizes"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
}

func TestFindMemoryLimit(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	machine := file("MemFree:  1 kB\nMemTotal:       8388608 kB\n")
	for name, c := range map[string]struct {
		files   fstest.MapFS
		goLimit int64
		want    memoryLimit
	}{
		"unknown":  {fstest.MapFS{}, 0, memoryLimit{math.MaxInt64, "the machine"}},
		"machine":  {fstest.MapFS{"proc/meminfo": machine}, 0, memoryLimit{8 * gib, "the machine's memory"}},
		"Go limit": {fstest.MapFS{"proc/meminfo": machine}, gib, memoryLimit{gib, "GOMEMLIMIT"}},
		"container": {fstest.MapFS{
			"proc/meminfo":             machine,
			"proc/self/cgroup":         file("0::/\n"),
			"sys/fs/cgroup/memory.max": file("536870912\n"),
		}, gib, memoryLimit{512 * mib, "the control group (memory.max)"}},
		"slice above the service": {fstest.MapFS{
			"proc/meminfo":                          machine,
			"proc/self/cgroup":                      file("1:name=systemd:/x\n0::/system.slice/brooklet.service\n"),
			"sys/fs/cgroup/system.slice/memory.max": file("1073741824\n"),
			"sys/fs/cgroup/system.slice/brooklet.service/memory.max": file("max\n"),
		}, 0, memoryLimit{gib, "the control group (memory.max)"}},
		"no limit": {fstest.MapFS{
			"proc/meminfo":             machine,
			"proc/self/cgroup":         file("0::/\n"),
			"sys/fs/cgroup/memory.max": file("max\n"),
		}, 0, memoryLimit{8 * gib, "the machine's memory"}},
	} {
		if got := findMemoryLimit(c.files, c.goLimit); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestLargestRequestAndMemory(t *testing.T) {
	for _, c := range []struct {
		limit         int64
		args          []string
		frame, memory int64
		reason        string
	}{
		{limit: 64 * gib, frame: 100 * mib, memory: gib},
		{limit: 256 * mib, frame: 16 * mib, memory: 64 * mib},
		{limit: 64 * gib, args: []string{"--request-memory-bytes", "80MiB"}, frame: 20 * mib, memory: 80 * mib},
		{limit: gib, args: []string{"--max-frame-bytes", "100MiB"}, frame: 100 * mib, memory: 445 * mib},
		{limit: 64 * gib, args: []string{"--max-frame-bytes", "256MiB"}, frame: 256 * mib, memory: gib},
		{limit: 256 * mib, args: []string{"--max-message-bytes", "32MiB"}, frame: 32*mib + frameOverhead, memory: 128*mib + 4*frameOverhead},
		{limit: 64 * gib, args: []string{"--max-frame-bytes", "100MiB", "--request-memory-bytes", "399MiB"},
			reason: "--max-frame-bytes 100MiB needs --request-memory-bytes 419430400, which is 399MiB"},
		{limit: 64 * gib, args: []string{"--max-message-bytes", "32MiB", "--request-memory-bytes", "64MiB"},
			reason: "--max-message-bytes 32MiB needs --request-memory-bytes 134479872, which is 64MiB: lower the first or raise the second"},
	} {
		var s settings
		parse(t, &s, c.args...)
		err := s.completeMemory(memoryLimit{c.limit, "the test"})
		if c.reason != "" {
			if err == nil || !strings.Contains(err.Error(), c.reason) {
				t.Errorf("%v: error %v, want %s", c.args, err, c.reason)
			}
			continue
		}
		if err != nil || s.maxFrameBytes != c.frame || s.memory.request != c.memory {
			t.Errorf("limit %s, %v: requests of %d, memory of %d, %v; want %d and %d", formatBytes(c.limit), c.args, s.maxFrameBytes, s.memory.request, err, c.frame, c.memory)
		}
		options := kafkaproto.Options{
			Versions:      new(kafkaproto.Versions),
			MaxFrameBytes: int(s.maxFrameBytes), MaxControlFrameBytes: int(s.maxControlFrameBytes()), MaxRequestMemory: s.memory.request,
		}
		options.EnsureDefaults()
		if err := options.Validate(); err != nil {
			t.Errorf("limit %s, %v: %v", formatBytes(c.limit), c.args, err)
		}
	}
}
