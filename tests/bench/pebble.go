package main

import (
	"context"
	"encoding/binary"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// pebbleAlone is the reference for produce: Pebble takes batches of size bytes from
// as many writers as the clients have requests on their way, each synced before it
// is acknowledged, and drops what is older than a flush as the broker does.
func pebbleAlone(ctx context.Context, dir string, size, writers int, d time.Duration) (float64, error) {
	db, err := openReference(dir)
	if err != nil {
		return 0, err
	}
	defer db.Close()
	const flushBytes = 32 << 20
	var next, bytes atomic.Int64
	var failure atomic.Pointer[error]
	fail := func(err error) { failure.CompareAndSwap(nil, &err) }
	var wg sync.WaitGroup
	started := time.Now()
	end := started.Add(d)
	for range writers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			value := randomBytes(size)
			for time.Now().Before(end) && ctx.Err() == nil && failure.Load() == nil {
				n := next.Add(1)
				if err := db.Set(tailKey(n), value, pebble.Sync); err != nil {
					fail(err)
					return
				}
				total := bytes.Add(int64(size))
				if per := max(int64(flushBytes/size), 1); n%per == 0 && n > 2*per {
					if err := db.DeleteRange(tailKey(n-2*per), tailKey(n-per), pebble.NoSync); err != nil {
						fail(err)
						return
					}
				}
				_ = total
			}
		}()
	}
	wg.Wait()
	if err := failure.Load(); err != nil {
		return 0, *err
	}
	return rate(bytes.Load(), time.Since(started)), ctx.Err()
}

func openReference(dir string) (*pebble.DB, error) {
	return pebble.Open(filepath.Join(dir, "pebble"), &pebble.Options{
		FormatMajorVersion:          pebble.FormatNewest,
		MemTableSize:                128 << 20,
		MemTableStopWritesThreshold: 4,
		Logger:                      quietLogger{},
	})
}

func tailKey(n int64) []byte {
	return binary.BigEndian.AppendUint64([]byte{'t'}, uint64(n))
}

type quietLogger struct{}

func (quietLogger) Infof(string, ...any)  {}
func (quietLogger) Errorf(string, ...any) {}
func (quietLogger) Fatalf(format string, args ...any) {
	panic(format)
}
