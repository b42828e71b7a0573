package faults

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sys/unix"

	"github.com/brookletmq/brooklet/tests/harness"
)

const diskStream = "disk/stream"

// diskWriter appends records 0, 1, 2, … one at a time.
type diskWriter struct {
	t    *testing.T
	conn *harness.Conn
	next int64 // all below are acknowledged
}

func newDiskWriter(t *testing.T, b *harness.Broker) *diskWriter {
	return &diskWriter{t: t, conn: harness.Dial(t, b.Addr)}
}

// diskValue is record n: 32 KiB that begin with the number.
func diskValue(n int64) []byte {
	return append(strconv.AppendInt(nil, n, 10), bytes.Repeat([]byte{' '}, 32<<10)...)
}

// append appends the next record. An error is that of the connection, or a code of Kafka's.
func (w *diskWriter) append() error {
	resp, err := w.conn.Try(produceRequest(diskStream, diskValue(w.next)))
	if err != nil {
		return err
	}
	p := resp.(*kmsg.ProduceResponse).Topics[0].Partitions[0]
	if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
		return err
	}
	if p.BaseOffset != w.next {
		w.t.Fatalf("record %d was acknowledged at offset %d", w.next, p.BaseOffset)
	}
	w.next++
	return nil
}

// appendSome appends n records, which must be acknowledged.
func (w *diskWriter) appendSome(n int) {
	w.t.Helper()
	for range n {
		if err := w.append(); err != nil {
			w.t.Fatalf("record %d: %v", w.next, err)
		}
	}
}

// appendUntil appends until that succeeds, or no longer does, and returns the last answer. There is a limit to it.
func (w *diskWriter) appendUntil(success bool) error {
	w.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		err := w.append()
		if success == (err == nil) {
			return err
		}
	}
	w.t.Fatalf("after %v appends still do not change to success: %v", patience, success)
	return nil
}

// check reads all records. More than those acknowledged may be there if the fate of the last one is not known.
func (w *diskWriter) check(b *harness.Broker, unknown int) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Addr), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{diskStream: {0: kgo.NewOffset().AtStart()}}))
	if err != nil {
		w.t.Fatal(err)
	}
	defer client.Close()
	end := endOf(w.t, b, diskStream)
	if end < w.next || end > w.next+int64(unknown) {
		w.t.Errorf("%d records are there, %d were acknowledged", end, w.next)
	}
	for next := int64(0); next < end; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			w.t.Fatalf("reading, after %d of %d records: %v", next, end, err)
		}
		for rec := range fetches.RecordsAll() {
			if rec.Offset != next || !bytes.Equal(rec.Value, diskValue(next)) {
				w.t.Fatalf("offset %d has a record %.30q", rec.Offset, rec.Value)
			}
			next++
		}
	}
}

func endOf(t *testing.T, b *harness.Broker, topic string) int64 {
	t.Helper()
	resp := harness.Do[*kmsg.ListOffsetsResponse](harness.Dial(t, b.Addr), endRequest(topic))
	p := resp.Topics[0].Partitions[0]
	if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
		t.Fatalf("asking for the end of %s: %v", topic, err)
	}
	return p.Offset
}

// mustSay wants the last line of the log to have all texts.
func mustSay(t *testing.T, b *harness.Broker, texts ...string) {
	t.Helper()
	line := lastLine(b)
	for _, text := range texts {
		if !strings.Contains(line, text) {
			t.Errorf("the broker's last words %q do not have %q", line, text)
		}
	}
}

// tmpfs mounts a file system of a size until the test ends, and reports whether that is allowed here.
func tmpfs(t *testing.T, size string) (dir string, ok bool) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "tmpfs")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Logf("mounting a file system: %v", err)
		return "", false
	}
	// After the broker's end, which was registered later.
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir, true
}

// fill makes a file that leaves so many bytes of a file system free.
func fill(t *testing.T, dir string, leave uint64) (remove func()) {
	t.Helper()
	name := filepath.Join(dir, "filler")
	file, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	chunk := make([]byte, 1<<20)
	for {
		var usage unix.Statfs_t
		if err := unix.Statfs(dir, &usage); err != nil {
			t.Fatal(err)
		}
		if usage.Bavail*uint64(usage.Bsize) <= leave {
			break
		}
		if _, err := file.Write(chunk); errors.Is(err, unix.ENOSPC) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	return func() {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
}

// Something else fills the disk of the data directory. Appends are refused before the database is in trouble, with an
// error that clients retry, reads go on, and so do appends once there is room.
func TestNearlyFullDisk(t *testing.T) {
	t.Parallel()
	dir, ok := tmpfs(t, "1g")
	if !ok {
		t.Log("in place of a disk that is filled: one that fails writes")
		failWrites(t, "local")
		return
	}
	b := harness.New(t, harness.Config{DataDir: filepath.Join(dir, "data")})
	b.Start()
	w := newDiskWriter(t, b)
	w.appendSome(20)
	remove := fill(t, dir, 240<<20) // 256 MiB are to stay free
	err := w.appendUntil(false)
	if !kerr.IsRetriable(err) {
		t.Errorf("on a full disk: %v, which clients do not retry", err)
	}
	w.check(b, 0)
	said := false
	for _, line := range b.Log() {
		said = said || strings.Contains(line.Message, "nearly full") && line.Fields["data_dir"] == b.DataDir
	}
	if !said {
		t.Errorf("the log does not say that the disk of %s is full", b.DataDir)
	}
	remove()
	w.appendUntil(true)
	w.appendSome(20)
	b.Kill()
	b.Start()
	w.check(b, 0)
}

// The disk does not take what the database writes: the kernel allows its files to grow no further. The broker ends with
// an error that names the data directory, and when there is room again nothing is lost that was acknowledged.
func TestDiskFailsWrites(t *testing.T) {
	t.Parallel()
	for _, durability := range []string{"local", "remote"} {
		t.Run(durability, func(t *testing.T) {
			t.Parallel()
			failWrites(t, durability)
		})
	}
}

func failWrites(t *testing.T, durability string) {
	b := harness.Start(t, harness.Config{Flags: []string{"--durability", durability, "--flush-interval", "50ms"}})
	w := newDiskWriter(t, b)
	w.appendSome(20)
	limit := unix.Rlimit{Cur: 2 << 20, Max: 2 << 20}
	if err := unix.Prlimit(b.Pid(), unix.RLIMIT_FSIZE, &limit, nil); err != nil {
		t.Fatal(err)
	}
	t.Logf("appends end with: %v", w.appendUntil(false))
	if code := b.WaitExit(); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	mustSay(t, b, b.DataDir)
	b.Start()
	w.check(b, 1)
}

// A data directory that cannot be written to is an error at start that names it.
func TestReadOnlyDisk(t *testing.T) {
	t.Parallel()
	// The file systems of the kernel take no folders, from root neither.
	dir := "/sys/brooklet"
	if mounted, ok := tmpfs(t, "1m"); ok {
		dir = filepath.Join(mounted, "data")
		if err := unix.Mount("none", mounted, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
	} else {
		t.Logf("in place of a read-only file system: %s", dir)
	}
	b := harness.New(t, harness.Config{DataDir: dir})
	if err := b.TryStart(); err == nil {
		t.Fatal("the broker runs")
	}
	if code := b.WaitExit(); code != 1 && code != 2 {
		t.Errorf("exit code %d, want 1 or 2", code)
	}
	mustSay(t, b, dir)
}

// The bucket's disk is full. With local durability appends go on meanwhile, and what waits reaches the bucket when there
// is room.
func TestFullBucket(t *testing.T) {
	t.Parallel()
	flags := []string{"--durability", "local", "--flush-interval", "20ms"}
	cfg := harness.Config{Flags: flags}
	var full func() (free func())
	if dir, ok := tmpfs(t, "8m"); ok {
		cfg.BucketDir = filepath.Join(dir, "bucket")
		full = func() func() { return fill(t, dir, 0) }
	} else {
		t.Log("in place of a folder that is full: an S3 service that refuses everything")
		service := newS3(t, 0)
		cfg.Flags = append(flags, "--bucket", service.url())
		full = func() func() {
			var w weather
			w.shares[refuse] = 1
			service.setWeather(w, time.Hour)
			return service.calm
		}
	}
	b := harness.Start(t, cfg)
	w := newDiskWriter(t, b)
	w.appendSome(20)
	free := full()
	w.appendSome(100) // 3 MiB
	awaitLog(t, b, "writing the commit log failed")
	w.appendSome(10)
	b.Kill()
	b.Spawn() // it cannot claim the log: it waits for the bucket
	awaitLog(t, b, "bucket")
	free()
	if err := b.AwaitReady(); err != nil {
		t.Fatalf("with room again: %v", err)
	}
	w = &diskWriter{t: t, conn: harness.Dial(t, b.Addr), next: w.next}
	w.appendSome(10)
	w.check(b, 0)
	b.Stop() // after all is in the bucket
	if err := os.RemoveAll(b.DataDir); err != nil {
		t.Fatal(err)
	}
	b.Start()
	w.check(b, 0)
}

// awaitLog waits for a line of the running broker's log that says something.
func awaitLog(t *testing.T, b *harness.Broker, text string) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); time.Now().Before(end); <-tick.C {
		for _, line := range b.Log() {
			if strings.Contains(line.Text, text) {
				return
			}
		}
	}
	t.Fatalf("the log never says %q", text)
}
