package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/brookletmq/brooklet/tests/harness"
)

// Kinds of objects in a bucket.
const (
	logObjects  = "log"
	segments    = "segments"
	checkpoints = "checkpoints"
	bundles     = "bundles of checkpoints"
	tables      = "tables of checkpoints"
)

// inventory is what has been seen in the bucket: which objects there were, and which of them are gone.
type inventory struct {
	here       map[string]string // name -> kind
	made, gone map[string]int    // per kind
}

// housekeeping is what must have happened in a round; otherwise it would prove nothing about it.
var housekeeping = []struct {
	kind       string
	made, gone int
}{
	{logObjects, 1, 1},
	{segments, 1, 1}, // segments of a higher level replace those of the one below
	{checkpoints, 3, 1},
	{bundles, 1, 1},
	{tables, 2, 1}, // the first base, and another one when the bundles had become large
}

// startInventory looks into the bucket again and again until the load ends.
func (r *round) startInventory() {
	r.load.Go(func() {
		for ticker := time.NewTicker(50 * time.Millisecond); ; {
			r.look()
			select {
			case <-ticker.C:
			case <-r.loading.Done():
				ticker.Stop()
				return
			}
		}
	})
}

// look brings the inventory up to date.
func (r *round) look() {
	names := r.objects()
	r.mu.Lock()
	defer r.mu.Unlock()
	v := &r.inventory
	if v.here == nil {
		*v = inventory{make(map[string]string), make(map[string]int), make(map[string]int)}
	}
	for name := range names {
		if _, known := v.here[name]; known {
			continue
		}
		if kind := r.kind(name); kind != "" {
			v.here[name] = kind
			v.made[kind]++
		}
	}
	for name, kind := range v.here {
		if !names[name] {
			delete(v.here, name)
			v.gone[kind]++
		}
	}
	r.progress.broadcast()
}

// kind tells what an object is, "" for one that does not matter here.
func (r *round) kind(name string) string {
	switch dir := path.Base(path.Dir(name)); dir {
	case logObjects, segments, checkpoints:
		return dir
	case "state":
		if bytes.HasPrefix(r.object(name), []byte("BRKLTBDL")) {
			return bundles
		}
		return tables
	}
	return ""
}

// objects returns the names of what is in the bucket.
func (r *round) objects() map[string]bool {
	if r.sc.s3 {
		return r.s3.names()
	}
	names := make(map[string]bool)
	_ = filepath.WalkDir(r.folder, func(name string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			names[name] = true
		}
		return nil // what is deleted meanwhile is not there
	})
	return names
}

func (r *round) object(name string) []byte {
	if r.sc.s3 {
		return r.s3.object(name)
	}
	data, _ := os.ReadFile(name) // it may have been deleted meanwhile
	return data
}

// missing says what housekeeping has not been seen yet, "" if all was.
func (r *round) missing() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var missing []string
	for _, want := range housekeeping {
		if made, gone := r.inventory.made[want.kind], r.inventory.gone[want.kind]; made < want.made || gone < want.gone {
			missing = append(missing, fmt.Sprintf("%d %s and %d deleted (want %d and %d)", made, want.kind, gone, want.made, want.gone))
		}
	}
	return strings.Join(missing, ", ")
}

// awaitHousekeeping waits until everything that a round must see has happened.
func (r *round) awaitHousekeeping() {
	r.t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		changed := r.progress.wait()
		missing := r.missing()
		if missing == "" || r.t.Failed() {
			return
		}
		select {
		case <-changed:
		case <-r.node().Exited():
			r.t.Fatalf("the broker has ended by itself: %s", lastLine(r.node()))
		case <-deadline.C:
			r.t.Fatalf("the bucket has had %s after %v, with nothing in the way", missing, patience)
		}
	}
}

// rebuilt counts the starts from a checkpoint that the running process has made: 1 or 0.
func rebuilt(b *harness.Broker) (n int) {
	for _, line := range b.Log() {
		if line.Message == "rebuilt the local database from a checkpoint" {
			n = 1
		}
	}
	return n
}

// bucketReport is the part of what brooklet bucket check prints that must hold.
type bucketReport struct {
	CheckedObjects int               `json:"checked_objects"`
	Problems       []json.RawMessage `json:"problems"`
	Garbage        []struct {
		Object string `json:"object"`
		Stays  string `json:"stays"`
	} `json:"garbage"`
}

// checkBucket reads all of the bucket from outside. No broker runs. Afterwards it removes what crashes left behind, and
// reads again.
func (r *round) checkBucket() {
	r.t.Helper()
	var report bucketReport
	check := func() {
		report = bucketReport{}
		r.bucketTool(&report, "check")
		if len(report.Problems) > 0 {
			r.fault("brooklet bucket check finds %d problems, such as %s", len(report.Problems), report.Problems[0])
		}
	}
	for range 2 { // the parts of an obsolete checkpoint go after it
		check()
		var removed json.RawMessage
		r.bucketTool(&removed, "gc", "--min-age", "0s", "--yes")
	}
	check()
	for _, g := range report.Garbage {
		if g.Stays == "" {
			r.fault("brooklet bucket gc has left %s", g.Object)
		}
	}
	if report.CheckedObjects == 0 {
		r.fault("brooklet bucket check has read nothing: %+v", report)
	}
}

func (r *round) bucketTool(answer any, args ...string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := harness.Command(ctx, append(append([]string{"bucket"}, args...), "--bucket", r.bucket, "--work-dir", r.t.TempDir(), "--output", "json")...).Output()
	if wrong := json.Unmarshal(out, answer); wrong != nil { // with problems it prints them and fails
		var stderr []byte
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			stderr = exit.Stderr
		}
		r.t.Fatalf("brooklet bucket %s has printed %q: %v; %v %s", args[0], out, wrong, err, stderr)
	}
}
