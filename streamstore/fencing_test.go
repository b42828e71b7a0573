package streamstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/brookletmq/brooklet/objstore"
	"github.com/brookletmq/brooklet/objstore/faulty"
)

// wantFenced checks that the store has stopped for good.
func wantFenced(t *testing.T, s *Store, id StreamID) {
	t.Helper()
	select {
	case <-s.Failed():
	default:
		t.Error("Failed is not closed")
	}
	if err := s.Err(); !errors.Is(err, ErrFenced) {
		t.Errorf("Err: %v", err)
	}
	if _, err := s.Append(context.Background(), AppendRequest{Stream: id, Batch: simpleBatch("late"), Expected: AnyOffset}); !errors.Is(err, ErrFenced) {
		t.Errorf("Append: %v", err)
	}
	if err := s.Flush(context.Background()); !errors.Is(err, ErrFenced) {
		t.Errorf("Flush: %v", err)
	}
	if _, err := s.Commit(context.Background(), NewTxn()); !errors.Is(err, ErrFenced) {
		t.Errorf("Commit: %v", err)
	}
}

// asideRecord is one append in a set-aside file.
type asideRecord struct {
	stream string
	batch  recordBatch
}

// readAside decodes a set-aside file as its documentation says.
func readAside(t *testing.T, fs vfs.FS, name string) (records []asideRecord) {
	t.Helper()
	file, err := fs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	b, err := io.ReadAll(file)
	if err != nil {
		t.Fatal(err)
	}
	if len(b) < 8 || string(b[:8]) != "BRKLTAIL" {
		t.Fatalf("%s begins with %q", name, b[:min(8, len(b))])
	}
	for b = b[8:]; len(b) > 0; {
		size, sum := binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])
		body := b[8 : 8+size]
		if crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)) != sum {
			t.Fatalf("%s: wrong checksum of record %d", name, len(records))
		}
		n := binary.BigEndian.Uint16(body)
		records = append(records, asideRecord{string(body[2 : 2+n]), recordBatch(body[2+n:])})
		b = b[8+size:]
	}
	return records
}

// wantAside reopens a disk that another writer has overtaken and checks what was set
// aside: payloads of stream "s" from offset first on.
func wantAside(t *testing.T, bucket objstore.Bucket, fs *vfs.MemFS, first int64, want ...string) *process {
	t.Helper()
	p := startProcess(t, bucket, fs, remote)
	r := p.Recovery()
	if r.SetAsideAppends != len(want) || r.TailAppends != 0 || !strings.HasPrefix(r.SetAside, "data/set-aside-") {
		t.Fatalf("recovery %+v, want %d appends set aside", r, len(want))
	}
	records := readAside(t, fs.CrashClone(vfs.CrashCloneCfg{}), r.SetAside)
	if len(records) != len(want) {
		t.Fatalf("%d records set aside", len(records))
	}
	for i, rec := range records {
		if rec.stream != "s" || rec.batch.baseOffset() != first+int64(i) || string(rec.batch[batchHeaderSize:]) != want[i] || !rec.batch.checksumOK() {
			t.Errorf("record %d set aside: %s at %d, %q; want %q", i, rec.stream, rec.batch.baseOffset(), rec.batch[batchHeaderSize:], want[i])
		}
	}
	return p
}

// A second writer claims while the first has two uploads on their way: one that has
// arrived unanswered, or none. The first acknowledges what lies before the claim in
// the log and nothing else; the rest stays on its disk and is set aside.
func TestFencedWithUploadsInFlight(t *testing.T) {
	for _, arrived := range []bool{true, false} {
		t.Run(fmt.Sprintf("first arrived %v", arrived), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bucket := objstore.NewMemory()
				a := startProcess(t, bucket, vfs.NewCrashableMem(), remote)
				id := mustCreate(t, a.Store, "s")
				flushOne(t, a.Store) // 2
				first, second := newGate(t), newGate(t)
				if arrived {
					gateCreates(a.faults, map[uint64]*gate{4: second}, map[uint64]*gate{3: first})
				} else {
					gateCreates(a.faults, map[uint64]*gate{3: first, 4: second}, nil)
				}
				one := mustAppend(t, a.Store, id, simpleBatch("one"))
				startFlush(t, a)
				two := mustAppend(t, a.Store, id, simpleBatch("two"))
				startFlush(t, a)
				<-first.reached
				<-second.reached

				b := startProcess(t, bucket, vfs.NewCrashableMem(), remote)
				waiting := async(func() error { return two.Wait(context.Background()) })
				second.open()
				synctest.Wait()
				first.open()
				err := one.Wait(context.Background())
				if arrived && err != nil || !arrived && !errors.Is(err, ErrFenced) {
					t.Errorf("acknowledgement of the first upload: %v", err)
				}
				if err := <-waiting; !errors.Is(err, ErrFenced) {
					t.Errorf("acknowledgement of the second upload: %v", err)
				}
				<-a.Failed()
				wantFenced(t, a.Store, id)
				want, aside := []string{"three"}, []string{"one", "two"}
				if arrived {
					want, aside = []string{"one", "three"}, []string{"two"}
				}
				mustAppend(t, b.Store, id, simpleBatch("three"))
				flushOne(t, b.Store)
				a.stop()
				b.stop()

				p := wantAside(t, bucket, a.fs, int64(len(want)-1), aside...)
				if got := readStream(t, p.Store, "s"); !slices.Equal(got, want) {
					t.Errorf("the first writer's disk now has %q, want %q", got, want)
				}
				p.stop()
				// Once only: the file is there, the tail is not.
				p = startProcess(t, bucket, a.fs, remote)
				if r := p.Recovery(); r.SetAside != "" {
					t.Errorf("set aside again: %+v", r)
				}
				p.stop()
				if got := readFresh(t, bucket, "s"); !slices.Equal(got, want) {
					t.Errorf("another disk has %q, want %q", got, want)
				}
			})
		})
	}
}

// With local durability a writer learns at its next flush that it is fenced.
func TestFencedLocalWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := objstore.NewMemory()
		a := startProcess(t, bucket, vfs.NewCrashableMem(), nil)
		id := mustCreate(t, a.Store, "s")
		mustWait(t, mustAppend(t, a.Store, id, simpleBatch("0")))
		flushOne(t, a.Store)
		b := startProcess(t, bucket, vfs.NewCrashableMem(), nil)
		mustWait(t, mustAppend(t, a.Store, id, simpleBatch("1")))
		if err := a.Flush(context.Background()); !errors.Is(err, ErrFenced) {
			t.Errorf("Flush: %v", err)
		}
		wantFenced(t, a.Store, id)
		if got := readStream(t, a.Store, "s"); !slices.Equal(got, []string{"0", "1"}) {
			t.Errorf("reads of the fenced writer: %q", got)
		}
		a.stop()
		b.stop()
		wantAside(t, bucket, a.fs, 1, "1")
	})
}

// Two writers that begin at the same time: both list the same end of the log and
// claim the same number. One of them has it, the other comes after it.
func TestConcurrentClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := objstore.NewMemory()
		fillLog(t, bucket, 1) // 1, 2
		faults := faulty.New(bucket, 1)
		claim := newGate(t)
		gateCreates(faults, map[uint64]*gate{3: claim}, nil)
		slow := make(chan *process, 1)
		go func() { slow <- startProcess(t, faults, vfs.NewCrashableMem(), remote) }()
		<-claim.reached
		fast := startProcess(t, bucket, vfs.NewCrashableMem(), remote)
		id := mustCreate(t, fast.Store, "s")
		mustAppend(t, fast.Store, id, simpleBatch("fast"))
		flushOne(t, fast.Store)
		claim.open()
		p := <-slow
		if p.Recovery().Epoch != fast.Recovery().Epoch+1 || p.Recovery().Commit != 5 {
			t.Errorf("the slow writer: %+v, the fast one %+v", p.Recovery(), fast.Recovery())
		}
		if got := readStream(t, p.Store, "s"); !slices.Equal(got, []string{"0", "fast"}) {
			t.Errorf("read %q", got)
		}
	})
}

// A claim that lands where the log had been, because what was there is gone, must
// not stand: the log goes on above it.
func TestClaimBelowTheEnd(t *testing.T) {
	for _, gone := range [][]uint64{{3}, {3, 4}} {
		for _, writer := range []string{"the same writer", "another writer"} {
			t.Run(fmt.Sprintf("%v gone, written by %s", gone, writer), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					bucket := objstore.NewMemory()
					old := startProcess(t, bucket, vfs.NewCrashableMem(), remote)
					id := mustCreate(t, old.Store, "s")
					flushOne(t, old.Store) // 2
					faults := faulty.New(bucket, 1)
					claim := newGate(t)
					gateCreates(faults, map[uint64]*gate{3: claim}, nil)
					result := async(func() error {
						p, err := tryProcess(t, faults, vfs.NewCrashableMem(), remote)
						if err == nil {
							p.stop()
						}
						return err
					})
					<-claim.reached
					p := old
					if writer == "another writer" {
						p = startProcess(t, bucket, vfs.NewCrashableMem(), remote)
					}
					for i := range 4 {
						mustAppend(t, p.Store, id, simpleBatch(fmt.Sprint(i)))
						flushOne(t, p.Store)
					}
					for _, number := range gone {
						if err := bucket.Delete(context.Background(), logName(0, number)); err != nil {
							t.Fatal(err)
						}
					}
					claim.open()
					if err := <-result; !errors.Is(err, ErrCorrupt) {
						t.Errorf("Open of the slow writer: %v; want it refused, because part of the log is gone", err)
					}
				})
			})
		}
	}
}

func flushing(o *Options) { o.Durability, o.FlushInterval = Remote, time.Millisecond }

// A left-over of a dead writer lies above the claim of the next one, with a hole between
// them. An opener that sees this much claims the hole's number, and whoever is the second
// writer to go on from there must notice: they never both acknowledge.
func TestClaimInHoleAboveClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := objstore.NewMemory()
		a := startProcess(t, bucket, vfs.NewCrashableMem(), remote)
		id := mustCreate(t, a.Store, "s")
		mustAppend(t, a.Store, id, simpleBatch("0"))
		flushOne(t, a.Store) // 2
		lost := newGate(t)
		gateCreates(a.faults, map[uint64]*gate{3: lost, 4: lost}, nil)
		for i := range 3 { // of 3, 4 and 5 only 5 arrives
			mustAppend(t, a.Store, id, simpleBatch(fmt.Sprint("lost", i)))
			startFlush(t, a)
		}
		a.link.dead.Store(true)
		b := startProcess(t, bucket, vfs.NewCrashableMem(), flushing) // claims 3
		c := startProcess(t, bucket, vfs.NewCrashableMem(), remote)
		late := mustAppend(t, b.Store, id, simpleBatch("late"))
		if err := late.Wait(context.Background()); !errors.Is(err, ErrFenced) {
			t.Errorf("acknowledgement of the writer that lost the shard: %v", err)
		}
		wantFenced(t, b.Store, id)
		mustAppend(t, c.Store, id, simpleBatch("1"))
		flushOne(t, c.Store)
		if got := readFresh(t, bucket, "s"); !slices.Equal(got, []string{"0", "1"}) {
			t.Errorf("read %q", got)
		}
	})
}

// Of a dead writer's uploads a later one has arrived. The next writer claims the
// number before it; every reader skips the left-over.
func TestLeftOverOfDeadWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := objstore.NewMemory()
		a := startProcess(t, bucket, vfs.NewCrashableMem(), remote)
		id := mustCreate(t, a.Store, "s")
		flushOne(t, a.Store) // 2
		never := newGate(t)
		gateCreates(a.faults, map[uint64]*gate{3: never}, nil)
		for _, payload := range []string{"never arrived", "left over"} {
			mustAppend(t, a.Store, id, simpleBatch(payload))
			startFlush(t, a)
		}
		disk := a.kill()

		b := startProcess(t, bucket, vfs.NewCrashableMem(), remote)
		for _, payload := range []string{"x", "y"} {
			mustAppend(t, b.Store, id, simpleBatch(payload))
			flushOne(t, b.Store)
		}
		b.stop()
		log := readLog(t, bucket)
		if live, dead := numbers(log, true), numbers(log, false); !slices.Equal(live, []uint64{1, 2, 3, 5, 6}) || !slices.Equal(dead, []uint64{4}) {
			t.Errorf("live objects %v, dead ones %v", live, dead)
		}
		want := []string{"x", "y"}
		if got := readFresh(t, bucket, "s"); !slices.Equal(got, want) {
			t.Errorf("another disk has %q", got)
		}
		// The disk of the dead one had synced nothing of its tail.
		p := startProcess(t, bucket, disk, remote)
		if got := readStream(t, p.Store, "s"); !slices.Equal(got, want) {
			t.Errorf("the dead writer's disk has %q, recovery %+v", got, p.Recovery())
		}
	})
}

// The same process comes back on its own disk and finds that an upload had arrived
// behind a number that had not: its tail goes into the log again, once.
func TestLeftOverOfOwnCrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := objstore.NewMemory()
		a := startProcess(t, bucket, vfs.NewCrashableMem(), nil)
		id := mustCreate(t, a.Store, "s")
		flushOne(t, a.Store) // 2
		never := newGate(t)
		gateCreates(a.faults, map[uint64]*gate{3: never}, nil)
		want := []string{"one", "two"}
		for _, payload := range want {
			mustWait(t, mustAppend(t, a.Store, id, simpleBatch(payload)))
			startFlush(t, a)
		}
		p := startProcess(t, bucket, a.kill(), nil)
		if got := readStream(t, p.Store, "s"); !slices.Equal(got, want) || p.Recovery().TailAppends != 2 {
			t.Errorf("read %q, recovery %+v", got, p.Recovery())
		}
		flushOne(t, p.Store)
		p.stop()
		if got := readFresh(t, bucket, "s"); !slices.Equal(got, want) {
			t.Errorf("another disk has %q", got)
		}
	})
}

// An upload of a fenced writer takes a number that this writer is about to use, while
// later commits of this writer are in the bucket already. All of them move on to new
// numbers; nothing is lost or doubled.
func TestZombieTakesNumber(t *testing.T) {
	for _, zombies := range [][]uint64{{4}, {4, 5}} {
		t.Run(fmt.Sprint(zombies), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bucket := objstore.NewMemory()
				a := startProcess(t, bucket, vfs.NewCrashableMem(), remote)
				id := mustCreate(t, a.Store, "s")
				flushOne(t, a.Store) // 2
				gates := map[uint64]*gate{3: newGate(t), 4: newGate(t), 5: newGate(t)}
				gateCreates(a.faults, gates, nil)
				for range 3 {
					mustAppend(t, a.Store, id, idempotent(0, 0).encode())
					mustAppend(t, a.Store, id, simpleBatch("zombie"))
					startFlush(t, a)
				}
				b := startProcess(t, bucket, vfs.NewCrashableMem(), remote) // claims 3
				mine := map[uint64]*gate{4: newGate(t), 5: newGate(t)}
				gateCreates(b.faults, mine, nil)
				var want []string
				var appends []Appended
				for i := range 4 { // 4 to 7
					appends = append(appends, mustAppend(t, b.Store, id, idempotent(0, int32(i)).encode()))
					want = append(want, fmt.Sprint("0.", i))
					if i == 1 {
						mustAppend(t, b.Store, mustCreate(t, b.Store, "t"), simpleBatch("t"))
					}
					startFlush(t, b)
				}
				for _, number := range zombies {
					gates[number].open() // lands
					synctest.Wait()
				}
				mine[5].open()
				synctest.Wait()
				mine[4].open()
				for _, a := range appends {
					mustWait(t, a)
				}
				mustAppend(t, b.Store, id, simpleBatch("after"))
				flushOne(t, b.Store)
				want = append(want, "after")
				b.stop()
				log := readLog(t, bucket)
				if dead := numbers(log, false); !slices.Equal(dead, []uint64{4, 5, 6, 7}) {
					t.Errorf("dead objects %v", dead)
				}
				for i, disk := range []*vfs.MemFS{b.fs, vfs.NewCrashableMem()} {
					p := startProcess(t, bucket, disk, remote)
					if got := readStream(t, p.Store, "s"); !slices.Equal(got, want) {
						t.Errorf("disk %d: read %q, want %q", i, got, want)
					}
					if got := readStream(t, p.Store, "t"); !slices.Equal(got, []string{"t"}) {
						t.Errorf("disk %d: read %q from the other stream", i, got)
					}
					if a, err := tryAppend(p.Store, id, idempotent(0, 3)); err != nil || !a.Duplicate || a.BaseOffset != 3 {
						t.Errorf("disk %d: retry: %+v, %v", i, a, err)
					}
					p.stop()
				}
				gates[3].open()
				<-a.Failed()
				wantFenced(t, a.Store, id)
			})
		})
	}
}

// A writer whose upload took very long looks for a newer writer before it
// acknowledges: its object may lie in a part of the log that is gone.
func TestSlowUploadLooksForNewerWriter(t *testing.T) {
	for _, fenced := range []bool{true, false} {
		t.Run(fmt.Sprintf("fenced %v", fenced), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bucket := objstore.NewMemory()
				a := startProcess(t, bucket, vfs.NewCrashableMem(), func(o *Options) {
					o.Durability, o.FenceCheckAfter = Remote, time.Nanosecond
				})
				id := mustCreate(t, a.Store, "s")
				flushOne(t, a.Store) // 2
				put := newGate(t)
				gateCreates(a.faults, map[uint64]*gate{3: put}, nil)
				appended := mustAppend(t, a.Store, id, simpleBatch("slow"))
				startFlush(t, a)
				<-put.reached
				if fenced {
					b := startProcess(t, bucket, vfs.NewCrashableMem(), remote) // claims 3
					mustAppend(t, b.Store, id, simpleBatch("b"))
					flushOne(t, b.Store) // 4
					// As if covered by a checkpoint and cleaned up.
					if err := bucket.Delete(context.Background(), logName(0, 3)); err != nil {
						t.Fatal(err)
					}
				}
				lists := a.faults.Calls(objstore.OpList)
				put.open()
				err := appended.Wait(context.Background())
				if fenced != errors.Is(err, ErrFenced) || !fenced && err != nil {
					t.Errorf("acknowledgement: %v", err)
				}
				if a.faults.Calls(objstore.OpList) == lists {
					t.Error("the log was not listed")
				}
			})
		})
	}
}
