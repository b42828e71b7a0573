package groups

import (
	"testing"
	"time"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// inEagerBubble runs a test with a coordinator over a storage that shows changes before they are durable, as the store does.
func inEagerBubble(t *testing.T, test func(t *testing.T, f *fixture)) {
	t.Helper()
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.rows.eager = true
		test(t, f)
	})
}

// What is read while a commit is on its way is confirmed when that is durable, whatever is queued behind it.
func TestConfirmWaits(t *testing.T) {
	inEagerBubble(t, func(t *testing.T, f *fixture) {
		f.mustCommit(commit(nobody, 4))
		wantErr(t, "nothing on its way", get(t, f.Confirm("g")), nil)
		wantErr(t, "no group", get(t, f.Confirm("other")), nil)
		f.rows.set(nil, time.Second)
		first := f.Commit(commit(nobody, 5))
		pass(0)
		want(t, "visible", f.committed(), int64(5))
		confirmed := f.Confirm("g")
		second := f.Commit(commit(nobody, 6))
		mustWait(t, confirmed)
		pass(time.Second)
		wantErr(t, "commit", get(t, first)[0], nil)
		wantErr(t, "confirmed", get(t, confirmed), nil)
		mustWait(t, second)
		pass(time.Second)
		wantErr(t, "commit", get(t, second)[0], nil)
		want(t, "groups in memory", f.inMemory(), 0)
	})
}

// After a write that has failed nothing is confirmed until a later one has succeeded: the row that it left may be lost.
func TestConfirmAfterFailure(t *testing.T) {
	inEagerBubble(t, func(t *testing.T, f *fixture) {
		f.mustCommit(commit(nobody, 4))
		f.rows.set(nil, time.Minute)
		lost := f.Commit(commit(nobody, 5))
		pass(0)
		during := f.Confirm("g")
		pass(5 * time.Second)
		wantErr(t, "commit", get(t, lost)[0], kafkaproto.ErrCoordinatorNotAvailable)
		wantErr(t, "during the write", get(t, during), kafkaproto.ErrCoordinatorNotAvailable)
		want(t, "visible", f.committed(), int64(5))
		after := f.Confirm("g")
		mustWait(t, after)
		pass(5 * time.Second)
		wantErr(t, "after the write", get(t, after), kafkaproto.ErrCoordinatorNotAvailable)
		f.rows.set(nil, 0)
		wantErr(t, "when writes succeed", get(t, f.Confirm("g")), nil)
		commits := f.rows.commits
		wantErr(t, "again", get(t, f.Confirm("g")), nil)
		want(t, "commits", f.rows.commits, commits)
		want(t, "groups in memory", f.inMemory(), 0)
		want(t, "rows", f.rows.keys(), []string{"group-offset/g/orders/0", "group/g"})
	})
}

// The clean-up does not leave a group in memory whose write has failed and that does not exist.
func TestCleanForgetsFailedGroup(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.mustCommit(commit(nobody, 4))
		wantErr(t, "delete", get(t, f.DeleteGroup("g")), nil)
		f.rows.set(errStorage, 0)
		wantErr(t, "commit", get(t, f.Commit(commit(nobody, 5)))[0], kafkaproto.ErrUnknownServerError)
		want(t, "groups in memory", f.inMemory(), 1)
		f.rows.set(nil, 0)
		want(t, "clean-up", f.Clean(t.Context()), nil)
		want(t, "groups in memory", f.inMemory(), 0)
		want(t, "rows", len(f.rows.keys()), 0)
	})
}
