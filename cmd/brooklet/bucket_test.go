package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/brookletmq/brooklet/objstore"
	"github.com/brookletmq/brooklet/streamstore"
)

// runCommand runs a command that asks no broker.
func runCommand(t *testing.T, args ...string) (string, error) {
	t.Helper()
	app := newApp()
	var out bytes.Buffer
	app.Writer = &out
	err := app.RunContext(t.Context(), flagsFirst(app.Commands, append([]string{"brooklet"}, args...)))
	return out.String(), err
}

// The bucket of a running broker is found whole; a changed byte is found with the stream that it hits.
func TestBucketCheck(t *testing.T) {
	dir := t.TempDir()
	p := start(t, command(t, serveArgs(dir, "--flush-interval", "10ms")...))
	c := &cluster{t, p.address("serving Kafka clients")}
	c.produce("users/1", 0, "one", "two", "three")
	url := "file://" + filepath.Join(dir, "bucket")
	bucket, err := objstore.Open(t.Context(), objstore.Options{URL: url, SkipProbe: true})
	if err != nil {
		t.Fatal(err)
	}
	defer bucket.Close()
	var l bucketListing
	check := func() (string, error) {
		t.Helper()
		text, err := runCommand(t, "bucket", "check", "--bucket", url, "--output", "json")
		if failed := json.Unmarshal([]byte(text), &l); failed != nil {
			t.Fatalf("%v, %v: %s", err, failed, text)
		}
		return text, err
	}
	for end := time.Now().Add(testTimeout); l.LiveBytes == 0 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if text, err := check(); err != nil {
			t.Fatalf("check: %v\n%s", err, text)
		}
	}
	if l.Streams == 0 || l.LogObjects < 1 || l.CheckedObjects == 0 || len(l.Problems) > 0 {
		t.Errorf("report: %+v", l)
	}
	stop(t, p)
	text, err := runCommand(t, "bucket", "check", "--bucket", url)
	if err != nil || !strings.HasSuffix(text, "\n\nAll is well: the records and the checkpoints that are kept are whole.\n") {
		t.Errorf("%v, table:\n%s", err, text)
	}
	damage(t, bucket, []byte("two"))
	text, err = check()
	if name := regexp.MustCompile(`"\w*[A-Z]\w*":`).FindString(text); name != "" {
		t.Errorf("%s is not written as other fields are", name)
	}
	checkError(t, err, exitFailure, "cannot be read", []string{"bucket", "check"})
	if len(l.Problems) == 0 || l.Problems[0].Stream != "users/1" || !strings.Contains(l.Problems[0].Error, "checksum") {
		t.Errorf("problems: %+v", l.Problems)
	}
	text, _ = runCommand(t, "bucket", "check", "--bucket", url)
	if !strings.Contains(text, "users/1") || !strings.Contains(text, "Newest commit") || strings.Contains(text, "All is well") {
		t.Errorf("table:\n%s", text)
	}
}

func stop(t *testing.T, p *process) {
	t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-p.ended
}

// damage changes the first place of the log that holds what.
func damage(t *testing.T, b objstore.Bucket, what []byte) {
	t.Helper()
	ctx := context.Background()
	err := b.List(ctx, "shards/0/log", "", func(info objstore.ObjectInfo) error {
		data, err := b.Get(ctx, info.Name)
		if i := bytes.Index(data, what); err == nil && i >= 0 {
			data[i] ^= 1
			if err = b.Delete(ctx, info.Name); err == nil {
				err = b.Create(ctx, info.Name, data)
			}
			if err == nil {
				err = fmt.Errorf("done")
			}
		}
		return err
	})
	if err == nil || err.Error() != "done" {
		t.Fatalf("nothing was damaged: %v", err)
	}
}

func TestCollected(t *testing.T) {
	segment, checkpoint, inUse := streamstore.GarbageObject{}, streamstore.GarbageObject{Checkpoint: true}, streamstore.GarbageObject{InUse: "why"}
	removed, gone := segment, checkpoint
	removed.Deleted, gone.Deleted = true, true
	for want, garbage := range map[string][]streamstore.GarbageObject{
		"nothing to remove:":    nil,
		"nothing to remove now": {inUse},
		"--yes removes: 2":      {segment, checkpoint, inUse},
		"objects: 1.":           {removed, inUse},
		"objects: 2. Obsolete":  {removed, gone, inUse},
	} {
		if got := collected(garbage); !strings.Contains(got, want) {
			t.Errorf("of %+v: %q, want %q", garbage, got, want)
		}
	}
	if got := collected([]streamstore.GarbageObject{removed}); strings.Contains(got, "again") {
		t.Errorf("without checkpoints: %q", got)
	}
}

func TestBucketGC(t *testing.T) {
	dir := t.TempDir()
	p := start(t, command(t, serveArgs(dir)...))
	p.address("serving Kafka clients")
	stop(t, p)
	url := "file://" + filepath.Join(dir, "bucket")
	text, err := runCommand(t, "bucket", "gc", "--bucket", url)
	if err != nil || text != "There is nothing to remove: no object is without use.\n" {
		t.Errorf("gc: %v\n%s", err, text)
	}
	text, err = runCommand(t, "bucket", "gc", "--bucket", url, "--yes", "--output", "json")
	if err != nil || strings.TrimSpace(text) != "[]" {
		t.Errorf("gc in JSON: %v\n%s", err, text)
	}
	missing, empty := filepath.Join(dir, "nosuch"), t.TempDir()
	for _, c := range []struct {
		code int
		want string
		args []string
	}{
		{exitSettings, "--bucket is not set", []string{"bucket", "check"}},
		{exitSettings, "there is no folder " + missing, []string{"bucket", "check", "--bucket", "file://" + missing}},
		{exitSettings, "there is no folder " + missing, []string{"bucket", "gc", "--yes", "--bucket", "file://" + missing}},
		{exitSettings, "--min-age is", []string{"bucket", "gc", "--bucket", url, "--min-age", "old"}},
		{exitFailure, "no commit log", []string{"bucket", "check", "--bucket", "file://" + empty}},
	} {
		_, err := runCommand(t, c.args...)
		checkError(t, err, c.code, c.want, c.args)
	}
	if _, err := os.Stat(missing); err == nil {
		t.Errorf("%s was made", missing)
	}
	if entries, err := os.ReadDir(empty); err != nil || len(entries) > 0 {
		t.Errorf("in a folder that was checked: %v, %v", entries, err)
	}
}
