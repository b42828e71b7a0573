package streamstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/brookletmq/brooklet/objstore"
)

// A renamed stream keeps its id, records and settings under the new name, and the old name is free, also after
// restarts and where only the bucket is left; whether it was flushed under the old name or not.
func TestRename(t *testing.T) {
	for _, flushed := range []bool{false, true} {
		for name, change := range map[string]func(*Options){"local": nil, "remote": remote} {
			t.Run(fmt.Sprintf("%s, flushed %v", name, flushed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					bucket := objstore.NewMemory()
					p := startProcess(t, bucket, vfs.NewCrashableMem(), change)
					id := createWith(t, p.Store, "_new/1", Settings{Retention: -1, RetentionBytes: -1, ContentType: "text/plain"})
					mustAppend(t, p.Store, id, simpleBatch("a"))
					if flushed {
						flushOne(t, p.Store)
					}
					mustCommit(t, p.Store, func(txn *Txn) { txn.Rename(id, "a/b"); txn.Set([]byte("row"), []byte("1")) })
					mustAppend(t, p.Store, id, simpleBatch("b"))
					other := mustCreate(t, p.Store, "_new/1")
					flushOne(t, p.Store)
					everyRestart(t, p, bucket, change, func(s *Store, when string) {
						if got, err := s.Lookup("a/b"); err != nil || got != id {
							t.Errorf("%s: new name is %d, %v; want %d", when, got, err, id)
						}
						if got, err := s.Lookup("_new/1"); err != nil || got != other {
							t.Errorf("%s: old name is %d, %v; want the stream %d that took it", when, got, err, other)
						}
						info, err := s.Describe(id)
						if err != nil || info.Name != "a/b" || info.Settings.ContentType != "text/plain" {
							t.Errorf("%s: %+v, %v", when, info, err)
						}
						if got := payloads(readAll(t, s, id, 0)); !slices.Equal(got, []string{"a", "b"}) {
							t.Errorf("%s: records %q", when, got)
						}
						if value, ok, err := s.Get([]byte("row")); err != nil || !ok || string(value) != "1" {
							t.Errorf("%s: row %q, %v, %v", when, value, ok, err)
						}
					})
				})
			})
		}
	}
}

func TestRenameRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startProcess(t, objstore.NewMemory(), vfs.NewCrashableMem(), nil)
		a, b := mustCreate(t, p.Store, "a"), mustCreate(t, p.Store, "b")
		synctest.Wait() // they are in the database
		for name, c := range map[string]struct {
			build func(*Txn)
			want  error
		}{
			"taken":       {func(txn *Txn) { txn.Rename(a, "b") }, ErrStreamExists},
			"its own":     {func(txn *Txn) { txn.Rename(a, "a") }, ErrStreamExists},
			"bad name":    {func(txn *Txn) { txn.Rename(a, "a//b") }, ErrInvalidName},
			"no stream":   {func(txn *Txn) { txn.Rename(a+1000, "c") }, ErrNoStream},
			"deleted":     {func(txn *Txn) { txn.Delete(a); txn.Rename(a, "c") }, ErrNoStream},
			"taken twice": {func(txn *Txn) { txn.Rename(a, "c"); txn.Rename(b, "c") }, ErrStreamExists},
		} {
			txn := NewTxn()
			c.build(txn)
			if _, err := p.Commit(context.Background(), txn); !errors.Is(err, c.want) {
				t.Errorf("%s: %v, want %v", name, err, c.want)
			}
		}
		if got, err := p.Lookup("a"); err != nil || got != a {
			t.Errorf("a is %d, %v after refused changes, want %d", got, err, a)
		}
		// A name that the same transaction frees can be taken, and names can be swapped.
		mustCommit(t, p.Store, func(txn *Txn) { txn.Rename(a, "c"); txn.Rename(b, "a"); txn.Rename(a, "b") })
		for name, want := range map[string]StreamID{"a": b, "b": a} {
			if got, err := p.Lookup(name); err != nil || got != want {
				t.Errorf("%s is %d, %v; want %d", name, got, err, want)
			}
		}
		if _, err := p.Lookup("c"); !errors.Is(err, ErrNoStream) {
			t.Errorf("c: %v", err)
		}
		mustCommit(t, p.Store, func(txn *Txn) { txn.Delete(b); txn.Rename(a, "a") })
		if got, err := p.Lookup("a"); err != nil || got != a {
			t.Errorf("a is %d, %v; want %d", got, err, a)
		}
	})
}

// Who waits for a name, or for streams under a prefix, learns of a stream that gets there by a new name, when it can be
// found and its records can be read.
func TestRenameIsNews(t *testing.T) {
	for name, change := range map[string]func(*Options){"local": nil, "remote": remote} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := startProcess(t, objstore.NewMemory(), vfs.NewCrashableMem(), change)
				id := mustCreate(t, p.Store, "_new/1")
				mustWait(t, mustAppend(t, p.Store, id, simpleBatch("a")))
				prefix := p.WatchPrefix("a/")
				defer prefix.Close()
				names := p.NewWatch()
				defer names.Close()
				names.AddName("a/b", 7)
				mustCommit(t, p.Store, func(txn *Txn) { txn.Rename(id, "a/b") })
				<-prefix.Ready()
				if ids, _ := prefix.Take(nil); !slices.Equal(ids, []StreamID{id}) {
					t.Errorf("news of the prefix: %v, want %d", ids, id)
				}
				<-names.Ready()
				if keys := names.Take(nil); !slices.Equal(keys, []int{7}) {
					t.Errorf("news of the name: %v", keys)
				}
				if got := readStream(t, p.Store, "a/b"); !slices.Equal(got, []string{"a"}) {
					t.Errorf("records %q", got)
				}
			})
		})
	}
}

// A stream may begin at any offset, and is then one whose first records were trimmed.
func TestCreateAt(t *testing.T) {
	for name, change := range map[string]func(*Options){"local": nil, "remote": remote} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bucket := objstore.NewMemory()
				p := startProcess(t, bucket, vfs.NewCrashableMem(), change)
				var id, empty StreamID
				result := mustCommit(t, p.Store, func(txn *Txn) {
					txn.CreateAt("s", DefaultSettings(), 1000)
					txn.CreateAt("empty", DefaultSettings(), 5)
				})
				id, empty = result.Created[0], result.Created[1]
				if o, err := p.Offsets(id); err != nil || o != (Offsets{1000, 1000, 1000}) {
					t.Errorf("offsets %+v, %v", o, err)
				}
				if a := mustAppend(t, p.Store, id, simpleBatch("a")); a.BaseOffset != 1000 {
					t.Errorf("first offset %d", a.BaseOffset)
				}
				flushOne(t, p.Store)
				everyRestart(t, p, bucket, change, func(s *Store, when string) {
					if o, err := s.Offsets(id); err != nil || o != (Offsets{1000, 1001, 1001}) {
						t.Errorf("%s: offsets %+v, %v", when, o, err)
					}
					if o, err := s.Offsets(empty); err != nil || o != (Offsets{5, 5, 5}) {
						t.Errorf("%s: offsets of the empty one %+v, %v", when, o, err)
					}
					if got := payloads(readAll(t, s, id, 1000)); !slices.Equal(got, []string{"a"}) {
						t.Errorf("%s: records %q", when, got)
					}
				})
				txn := NewTxn()
				txn.CreateAt("negative", DefaultSettings(), -1)
				p = startProcess(t, objstore.NewMemory(), vfs.NewCrashableMem(), nil)
				if _, err := p.Commit(context.Background(), txn); !errors.Is(err, ErrOffsetOutOfRange) {
					t.Errorf("negative start: %v", err)
				}
			})
		})
	}
}

// Rows of an append are there if and only if its batch is: a crash keeps or loses both, a duplicate and a refused append
// write none, and one may close the stream as well.
func TestRowsOfAppends(t *testing.T) {
	for name, change := range map[string]func(*Options){"local": nil, "remote": remote} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bucket := objstore.NewMemory()
				p := startProcess(t, bucket, vfs.NewCrashableMem(), change)
				id := mustCreate(t, p.Store, "s")
				write := func(sequence int32, value string, closing bool) (Appended, error) {
					return p.Append(context.Background(), AppendRequest{
						Stream: id, Batch: batchSpec{producer: NamedProducer("p"), sequence: sequence, payload: []byte(value)}.encode(),
						Expected: AnyOffset, Ack: AckDurable, Close: closing, Rows: []Row{{[]byte("k"), []byte(value)}},
					})
				}
				wantRow := func(s *Store, when, want string) {
					t.Helper()
					if value, _, err := s.Get([]byte("k")); err != nil || string(value) != want {
						t.Errorf("%s: row %q, %v; want %q", when, value, err, want)
					}
				}
				for i, value := range []string{"zero", "one"} {
					a, err := write(int32(i), value, false)
					if err != nil {
						t.Fatal(err)
					}
					mustWait(t, a)
					wantRow(p.Store, "after an append", value)
				}
				if a, err := write(0, "again", false); err != nil || !a.Duplicate {
					t.Fatalf("%+v, %v", a, err)
				}
				if _, err := write(7, "gap", false); !errors.Is(err, ErrOutOfOrderSequence) {
					t.Fatal(err)
				}
				flushOne(t, p.Store)
				wantRow(p.Store, "after a duplicate and a gap", "one")
				a, err := write(2, "last", true)
				if err != nil {
					t.Fatal(err)
				}
				mustWait(t, a)
				flushOne(t, p.Store)
				everyRestart(t, p, bucket, change, func(s *Store, when string) {
					wantRow(s, when, "last")
					if info, err := s.Describe(id); err != nil || !info.Closed || info.Next != 3 {
						t.Errorf("%s: %+v, %v", when, info, err)
					}
				})
			})
		})
	}
}

// A crash loses an append and its rows together, or neither.
func TestRowsOfAppendsOverACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := objstore.NewMemory()
		p := startProcess(t, bucket, vfs.NewCrashableMem(), nil)
		id := mustCreate(t, p.Store, "s")
		for i := range 20 {
			value := fmt.Sprint(i)
			a, err := p.Append(context.Background(), AppendRequest{
				Stream: id, Batch: simpleBatch(value), Expected: AnyOffset, Ack: AckDurable, Rows: []Row{{[]byte("k"), []byte(value)}},
			})
			if err != nil {
				t.Fatal(err)
			}
			if i%3 == 0 {
				mustWait(t, a)
			}
		}
		p = startProcess(t, bucket, p.kill(), nil)
		records := readStream(t, p.Store, "s")
		value, _, err := p.Get([]byte("k"))
		if err != nil || len(records) < 19 || string(value) != records[len(records)-1] {
			t.Errorf("row %q, %v beside the records %q: they must be of one append", value, err, records)
		}
	})
}

// A stream goes at its end of life, whatever was written to it, and touching one begins its time to live anew.
func TestEndOfLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := objstore.NewMemory()
		change := func(o *Options) { o.RetentionInterval = 1000 * time.Hour } // only this test makes passes
		p := startProcess(t, bucket, vfs.NewCrashableMem(), change)
		over := time.Now().Add(time.Hour)
		mortal := createWith(t, p.Store, "mortal", Settings{Retention: -1, RetentionBytes: -1, ExpiresAt: over.In(time.FixedZone("x", 3600))})
		touched := createWith(t, p.Store, "touched", Settings{Retention: -1, RetentionBytes: -1, TTL: time.Hour})
		if info, err := p.Describe(mortal); err != nil || info.Settings.ExpiresAt != time.UnixMilli(over.UnixMilli()).UTC() {
			t.Errorf("%+v, %v: the time is kept in UTC and whole milliseconds", info.Settings, err)
		}
		time.Sleep(59 * time.Minute)
		mustWait(t, mustAppend(t, p.Store, mortal, simpleBatch("x")))
		mustCommit(t, p.Store, func(txn *Txn) { txn.Touch(touched) })
		mustExpire(t, p.Store)
		flushOne(t, p.Store)
		p.stop()
		p = startProcess(t, bucket, vfs.NewCrashableMem(), change)
		if info, err := p.Describe(mortal); err != nil || info.Expired(time.Now()) || !info.Expired(over) {
			t.Errorf("before its end: %+v, %v", info, err)
		}
		time.Sleep(2 * time.Minute)
		mustExpire(t, p.Store)
		if _, err := p.Describe(mortal); !errors.Is(err, ErrNoStream) {
			t.Errorf("after its end of life: %v", err)
		}
		if _, err := p.Describe(touched); err != nil {
			t.Errorf("the touched stream: %v", err)
		}
		time.Sleep(59 * time.Minute)
		mustExpire(t, p.Store)
		if _, err := p.Describe(touched); !errors.Is(err, ErrNoStream) {
			t.Errorf("an hour after the touch: %v", err)
		}
	})
}
