package streamstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/brookletmq/brooklet/objstore"
)

// everyRestart runs check on a store three times: as it is, after a restart, and on a
// new disk. It returns the last process.
func everyRestart(t *testing.T, p *process, bucket objstore.Bucket, change func(*Options), check func(s *Store, when string)) *process {
	t.Helper()
	check(p.Store, "at once")
	p.stop()
	p = startProcess(t, bucket, p.fs, change)
	check(p.Store, "after a restart")
	p.stop()
	p = startProcess(t, bucket, vfs.NewCrashableMem(), change)
	check(p.Store, "on another disk")
	return p
}

func TestSettingsAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := objstore.NewMemory()
		p := startProcess(t, bucket, vfs.NewCrashableMem(), nil)
		id := createWith(t, p.Store, "s", Settings{
			Retention: -5, RetentionBytes: -7, TTL: 90*time.Minute + time.Nanosecond, ContentType: "application/json",
		})
		never := createWith(t, p.Store, "never", Settings{Retention: -1, RetentionBytes: -1, TTL: -3})
		flushOne(t, p.Store)
		everyRestart(t, p, bucket, nil, func(s *Store, when string) {
			want := Settings{Retention: -1, RetentionBytes: -1, TTL: 90 * time.Minute, ContentType: "application/json"}
			if info, err := s.Describe(id); err != nil || info.Settings != want {
				t.Errorf("%s: %+v, %v; want %+v", when, info.Settings, err, want)
			}
			if info, err := s.Describe(never); err != nil || info.Settings != DefaultSettings() {
				t.Errorf("%s: %+v, %v; want the defaults", when, info.Settings, err)
			}
		})
	})
}

func TestSettingsOutOfRange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startProcess(t, objstore.NewMemory(), vfs.NewCrashableMem(), nil)
		for name, settings := range map[string]Settings{
			"retention":    {Retention: 0},
			"ttl":          {Retention: -1, TTL: time.Microsecond},
			"long type":    {Retention: -1, ContentType: strings.Repeat("x", MaxContentTypeBytes+1)},
			"line in type": {Retention: -1, ContentType: "text/plain\r\nX: y"},
		} {
			txn := NewTxn()
			txn.Create(name, settings)
			if _, err := p.Commit(context.Background(), txn); !errors.Is(err, ErrInvalidSettings) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// A closed stream takes no appends, also those that come as retries of nothing, and
// can still be read, trimmed and deleted.
func TestClose(t *testing.T) {
	for _, how := range []string{"by a transaction", "with the last append"} {
		for name, change := range map[string]func(*Options){"local": nil, "remote": remote} {
			t.Run(how+"/"+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testClose(t, how == "by a transaction", change) })
			})
		}
	}
}

func testClose(t *testing.T, byTxn bool, change func(*Options)) {
	bucket := objstore.NewMemory()
	p := startProcess(t, bucket, vfs.NewCrashableMem(), change)
	id := mustCreate(t, p.Store, "s")
	mustWait(t, mustAppend(t, p.Store, id, simpleBatch("a")))
	last := idempotent(0, 0)
	if byTxn {
		mustWait(t, mustAppend(t, p.Store, id, last.encode()))
		mustCommit(t, p.Store, func(txn *Txn) { txn.Close(id) })
		mustCommit(t, p.Store, func(txn *Txn) { txn.Close(id) })
	} else {
		a, err := p.Append(context.Background(), AppendRequest{Stream: id, Batch: last.encode(), Expected: AnyOffset, Ack: AckDurable, Close: true})
		if err != nil {
			t.Fatal(err)
		}
		mustWait(t, a)
	}
	check := func(s *Store, when string) {
		var closed *StreamClosedError
		if _, err := tryAppend(s, id, batchSpec{payload: []byte("late")}); !errors.As(err, &closed) || closed.Next != 2 || !errors.Is(err, ErrStreamClosed) {
			t.Errorf("%s: append: %v", when, err)
		}
		if a, err := tryAppend(s, id, last); err != nil || !a.Duplicate || a.BaseOffset != 1 {
			t.Errorf("%s: retry of the last append: %+v, %v", when, a, err)
		}
		if info, err := s.Describe(id); err != nil || !info.Closed || info.Next != 2 || info.HighWatermark != 2 {
			t.Errorf("%s: %+v, %v", when, info, err)
		}
		if got := readStream(t, s, "s"); !slices.Equal(got, []string{"a", "0.0"}) {
			t.Errorf("%s: read %q", when, got)
		}
	}
	check(p.Store, "at once")
	p = startProcess(t, bucket, p.kill(), change) // the tail is read back
	check(p.Store, "after a crash")
	flushOne(t, p.Store)
	p = everyRestart(t, p, bucket, change, check)
	mustCommit(t, p.Store, func(txn *Txn) { txn.Trim(id, 2) })
	mustCommit(t, p.Store, func(txn *Txn) { txn.Configure(id, DefaultSettings()) })
	if info, err := p.Describe(id); err != nil || !info.Closed || info.Start != 2 {
		t.Errorf("trimmed and configured: %+v, %v", info, err)
	}
	mustCommit(t, p.Store, func(txn *Txn) { txn.Delete(id) })
}

// An append that closes and a transaction on the same stream both have their effect,
// whichever comes first.
func TestCloseBesideTransactions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startProcess(t, objstore.NewMemory(), vfs.NewCrashableMem(), nil)
		for i := range 50 {
			id := mustCreate(t, p.Store, fmt.Sprint("s", i))
			done := make(chan error)
			go func() {
				_, err := p.Append(context.Background(), AppendRequest{Stream: id, Batch: simpleBatch("x"), Expected: AnyOffset, Close: true})
				done <- err
			}()
			mustCommit(t, p.Store, func(txn *Txn) { txn.Configure(id, Settings{Retention: -1, RetentionBytes: 9}) })
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if info, err := p.Describe(id); err != nil || !info.Closed || info.Settings.RetentionBytes != 9 {
				t.Fatalf("%+v, %v", info, err)
			}
		}
	})
}

// A stream goes when nothing was written to it for its time to live: not before, not
// if it was written to, trimmed or configured meanwhile, and also after a restart or
// when retention has taken all its records.
func TestTimeToLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := objstore.NewMemory()
		// Only this test makes passes of retention.
		change := func(o *Options) { o.RetentionInterval = 1000 * time.Hour }
		p := startProcess(t, bucket, vfs.NewCrashableMem(), change)
		settings := Settings{Retention: -1, RetentionBytes: -1, TTL: time.Hour}
		for _, name := range []string{"empty", "written", "tail", "trimmed", "configured"} {
			createWith(t, p.Store, name, settings)
		}
		createWith(t, p.Store, "retained", Settings{Retention: time.Minute, RetentionBytes: -1, TTL: time.Hour})
		createWith(t, p.Store, "forever", DefaultSettings())
		id := func(name string) StreamID {
			id, err := p.Lookup(name)
			if err != nil {
				t.Fatal(err)
			}
			return id
		}
		wantStreams := func(when string, want ...string) {
			t.Helper()
			infos, err := p.List("", "", 100)
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, info := range infos {
				names = append(names, info.Name)
			}
			slices.Sort(want)
			if !slices.Equal(names, want) {
				t.Errorf("%s: streams %q, want %q", when, names, want)
			}
		}
		mustWait(t, mustAppend(t, p.Store, id("trimmed"), simpleBatch("x")))
		time.Sleep(40 * time.Minute)
		for _, name := range []string{"written", "retained"} {
			mustWait(t, mustAppend(t, p.Store, id(name), simpleBatch("x")))
		}
		flushOne(t, p.Store)
		time.Sleep(2 * time.Minute)
		mustExpire(t, p.Store) // takes the record of "retained", which is no write
		mustCommit(t, p.Store, func(txn *Txn) { txn.Trim(id("trimmed"), 1) })
		mustCommit(t, p.Store, func(txn *Txn) { txn.Configure(id("configured"), settings) })
		mustExpire(t, p.Store)
		wantStreams("after 42 minutes", "configured", "empty", "forever", "retained", "tail", "trimmed", "written")
		time.Sleep(17 * time.Minute)
		mustWait(t, mustAppend(t, p.Store, id("tail"), simpleBatch("x")))
		time.Sleep(2 * time.Minute)
		mustExpire(t, p.Store)
		wantStreams("after 61 minutes", "configured", "forever", "retained", "tail", "trimmed", "written")
		p.stop()
		p = startProcess(t, bucket, vfs.NewCrashableMem(), change)
		time.Sleep(40 * time.Minute)
		mustExpire(t, p.Store)
		wantStreams("after 101 minutes", "configured", "forever", "tail", "trimmed")
		time.Sleep(time.Hour)
		mustExpire(t, p.Store)
		wantStreams("in the end", "forever")
	})
}

// What happens to a stream between the look of retention at it and the deletion or trim
// keeps it, or its records: a write, a trim, new settings. A pass looks at many streams
// and may have to wait for the bucket in between.
func TestRetentionRaces(t *testing.T) {
	die, expire := Settings{Retention: -1, RetentionBytes: -1, TTL: time.Hour}, Settings{Retention: time.Hour, RetentionBytes: -1}
	end := Settings{Retention: -1, RetentionBytes: -1, ExpiresAt: time.UnixMilli(1)} // of the past at any time
	write := func(t *testing.T, s *Store, id StreamID) { mustWait(t, mustAppend(t, s, id, simpleBatch("y"))) }
	configure := func(settings Settings) func(*testing.T, *Store, StreamID) {
		return func(t *testing.T, s *Store, id StreamID) {
			mustCommit(t, s, func(txn *Txn) { txn.Configure(id, settings) })
		}
	}
	for what, race := range map[string]struct {
		settings  Settings
		meanwhile func(*testing.T, *Store, StreamID)
		want      []string
	}{
		"write":                  {die, write, []string{"x", "y"}},
		"configured to stay":     {die, configure(DefaultSettings()), []string{"x"}},
		"configured the same":    {die, configure(die), []string{"x"}},
		"trimmed":                {die, func(t *testing.T, s *Store, id StreamID) { mustCommit(t, s, func(txn *Txn) { txn.Trim(id, 1) }) }, nil},
		"end of life put off":    {end, configure(DefaultSettings()), []string{"x"}},
		"records to stay":        {expire, configure(DefaultSettings()), []string{"x"}},
		"records to stay longer": {expire, configure(Settings{Retention: 3 * time.Hour, RetentionBytes: -1}), []string{"x"}},
		"records and write":      {expire, write, []string{"y"}},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := startProcess(t, objstore.NewMemory(), vfs.NewCrashableMem(), func(o *Options) { o.RetentionInterval = 1000 * time.Hour })
				id := createWith(t, p.Store, "s", race.settings)
				mustWait(t, mustAppend(t, p.Store, id, batchSpec{payload: []byte("x"), timestamp: time.Now().UnixMilli()}.encode()))
				flushOne(t, p.Store)
				time.Sleep(2 * time.Hour)
				seen, err := p.expiringStreams(0)
				if err != nil || len(seen) != 1 {
					t.Fatalf("%d streams that expire, %v", len(seen), err)
				}
				// One pass looks before the change, one after.
				dying := NewTxn()
				if _, err := p.stageDeath(dying, id, &seen[0].row); err != nil {
					t.Fatal(err)
				}
				expiring := NewTxn()
				if race.settings.expires() {
					if err := p.stageExpiry(expiring, id, &seen[0].row); err != nil {
						t.Fatal(err)
					}
				}
				race.meanwhile(t, p.Store, id)
				for _, txn := range []*Txn{dying, expiring} {
					if _, _, err := p.queueTxn(context.Background(), txn); err != nil && !errors.Is(err, ErrConflict) && !errors.Is(err, errChanged) {
						t.Fatal(err)
					}
				}
				if err := p.expireStream(context.Background(), id, &seen[0].row); err != nil {
					t.Fatal(err)
				}
				flushOne(t, p.Store)
				if got := readStream(t, p.Store, "s"); !slices.Equal(got, race.want) {
					t.Errorf("read %q, want %q", got, race.want)
				}
			})
		})
	}
}

// Changes of different settings at the same time do not undo each other, and one that fails
// changes nothing.
func TestReconfigure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := objstore.NewMemory()
		p := startProcess(t, bucket, vfs.NewCrashableMem(), nil)
		id := mustCreate(t, p.Store, "s")
		first, second, bad, empty := NewTxn(), NewTxn(), NewTxn(), NewTxn()
		first.Reconfigure(id, func(s *Settings) error { s.TTL = time.Hour; return nil })
		second.Reconfigure(id, func(s *Settings) error { s.ContentType = "text/plain"; return nil })
		refused := errors.New("refused")
		bad.Set([]byte("k"), []byte("v"))
		bad.Reconfigure(id, func(s *Settings) error { s.TTL = 0; return refused })
		empty.Reconfigure(id, func(s *Settings) error { s.Retention = 0; return nil })
		for _, txn := range []*Txn{second, first} {
			if _, err := p.Commit(t.Context(), txn); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := p.Commit(t.Context(), bad); !errors.Is(err, refused) {
			t.Errorf("a change that refuses: %v", err)
		}
		if _, err := p.Commit(t.Context(), empty); !errors.Is(err, ErrInvalidSettings) {
			t.Errorf("settings that are invalid: %v", err)
		}
		if _, ok, err := p.Get([]byte("k")); ok || err != nil {
			t.Error("a part of a refused transaction happened")
		}
		flushOne(t, p.Store)
		everyRestart(t, p, bucket, nil, func(s *Store, when string) {
			want := Settings{Retention: -1, RetentionBytes: -1, TTL: time.Hour, ContentType: "text/plain"}
			if info, err := s.Describe(id); err != nil || info.Settings != want {
				t.Errorf("%s: %+v, %v; want %+v", when, info.Settings, err, want)
			}
		})
	})
}

// The sequence numbers of a named producer count appends; all that it sent before in
// its epoch is a duplicate.
func TestNamedProducer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := objstore.NewMemory()
		p := startProcess(t, bucket, vfs.NewCrashableMem(), nil)
		id := mustCreate(t, p.Store, "s")
		named := func(epoch int16, sequence int32, records int) batchSpec {
			return batchSpec{producer: NamedProducer("me"), epoch: epoch, sequence: sequence, records: records, payload: []byte(fmt.Sprint(epoch, ".", sequence))}
		}
		if NamedProducer("me") == NamedProducer("you") || NamedProducer("me") < 1<<62 {
			t.Error("ids are wrong")
		}
		var sequenceErr *SequenceError
		first := named(0, 1, 1)
		_, err := p.Append(context.Background(), AppendRequest{Stream: id, Batch: first.encode(), Expected: AnyOffset, FromZero: true})
		if !errors.As(err, &sequenceErr) || sequenceErr.Expected != 0 || sequenceErr.Got != 1 {
			t.Errorf("an unknown producer's sequence 1: %v", err)
		}
		next := int64(0)
		for sequence := range int32(8) {
			a, err := tryAppend(p.Store, id, named(0, sequence, 3))
			if err != nil || a.BaseOffset != next || a.Duplicate {
				t.Fatalf("sequence %d: %+v, %v", sequence, a, err)
			}
			next = a.LastOffset + 1
		}
		flushOne(t, p.Store)
		p = everyRestart(t, p, bucket, nil, func(s *Store, when string) {
			for sequence, base := range map[int32]int64{7: 21, 3: 9, 2: UnknownOffset, 0: UnknownOffset} {
				if a, err := tryAppend(s, id, named(0, sequence, 3)); err != nil || !a.Duplicate || a.BaseOffset != base {
					t.Errorf("%s: sequence %d again: %+v, %v", when, sequence, a, err)
				}
			}
			if _, err := tryAppend(s, id, named(0, 9, 1)); !errors.As(err, &sequenceErr) || sequenceErr.Expected != 8 {
				t.Errorf("%s: a gap: %v", when, err)
			}
		})
		if _, err := tryAppend(p.Store, id, named(2, 0, 1)); err != nil {
			t.Error(err)
		}
		var epochErr *ProducerEpochError
		if _, err := tryAppend(p.Store, id, named(1, 8, 1)); !errors.As(err, &epochErr) || epochErr.Current != 2 {
			t.Errorf("an old epoch: %v", err)
		}
	})
}

func TestWatchPrefix(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startProcess(t, objstore.NewMemory(), vfs.NewCrashableMem(), nil)
		old, other := mustCreate(t, p.Store, "a/old"), mustCreate(t, p.Store, "b/other")
		w := p.WatchPrefix("a/")
		mustWait(t, mustAppend(t, p.Store, other, simpleBatch("x")))
		if ids, lost := w.Take(nil); len(ids) > 0 || lost {
			t.Errorf("news of another prefix: %v, %v", ids, lost)
		}
		mustWait(t, mustAppend(t, p.Store, old, simpleBatch("x")))
		made := mustCreate(t, p.Store, "a/made")
		mustWait(t, mustAppend(t, p.Store, made, simpleBatch("x")))
		mustWait(t, mustAppend(t, p.Store, old, simpleBatch("y")))
		<-w.Ready()
		if ids, lost := w.Take(nil); !slices.Equal(ids, []StreamID{old, made}) || lost {
			t.Errorf("news %v, %v; want %v", ids, lost, []StreamID{old, made})
		}
		mustCommit(t, p.Store, func(txn *Txn) { txn.Delete(old) })
		if ids, _ := w.Take(nil); !slices.Equal(ids, []StreamID{old}) {
			t.Errorf("after a deletion: %v", ids)
		}
		for i := range StreamID(maxPrefixNews + 1) {
			w.notify(i)
		}
		if ids, lost := w.Take(nil); len(ids) != maxPrefixNews || !lost {
			t.Errorf("%d streams, lost %v", len(ids), lost)
		}
		w.Close()
		if p.prefixes.list.Load() != nil {
			t.Error("the closed watch is still there")
		}
	})
}
