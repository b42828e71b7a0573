package streamstore

import (
	"encoding/binary"
	"encoding/hex"
	"path"

	"github.com/cockroachdb/pebble/v2"

	"github.com/brookletmq/brooklet/streamstore/diskcache"
)

// cacheDir is the folder of the disk cache.
func (o *Options) cacheDir() string { return path.Join(o.Dir, "cache") }

// DiskCacheMemory is the memory in bytes that a disk cache of the given size needs at
// most, for its index above all.
func DiskCacheMemory(diskCacheBytes int64) int64 { return diskcache.MemoryBound(diskCacheBytes) }

// diskCacheFreeShare: the disk cache gives its room up while the disk has less free than
// so many times Options.MinFreeBytes, and with that well before appends are refused.
const diskCacheFreeShare = 2

// openDiskCache begins to use the disk cache, or removes its files if there is to be
// none.
//
// Object names do not tell two logs apart, so a cache belongs to one database: a random
// row there names the cache's folder. That database and bucket belong together is proved
// before (follower.checkIdentity), and an object is never changed.
func (s *Store) openDiskCache() error {
	if s.opts.DiskCacheBytes == 0 {
		s.background(func() { _ = s.opts.FS.RemoveAll(s.opts.cacheDir()) }) // only to free its room
		return nil
	}
	identity, ok, err := s.getRow(keyCache)
	if err != nil {
		return err
	}
	if !ok {
		n := newNonce()
		identity = n[:]
		if err := s.db.Set(keyCache, identity, pebble.Sync); err != nil {
			return err
		}
	}
	s.segments.disk = diskcache.Open(diskcache.Options{
		FS:           s.opts.FS,
		Dir:          s.opts.cacheDir(),
		Identity:     hex.EncodeToString(identity),
		Bytes:        s.opts.DiskCacheBytes,
		MinFreeBytes: diskCacheFreeShare * s.opts.MinFreeBytes,
		Logger:       s.log,
	})
	return nil
}

// diskKey names the extent on disk. Object and position would do; the rest makes sure
// that not even a bucket that was put back to an earlier state, and went on differently,
// gets bytes of its other future.
func (x *extent) diskKey() (key diskcache.Key) {
	binary.BigEndian.PutUint64(key[0:], x.object.number)
	binary.BigEndian.PutUint64(key[8:], uint64(x.position))
	binary.BigEndian.PutUint64(key[16:], uint64(x.object.kind)<<56|uint64(x.length))
	binary.BigEndian.PutUint64(key[24:], uint64(x.base))
	binary.BigEndian.PutUint64(key[32:], uint64(x.last))
	binary.BigEndian.PutUint64(key[40:], uint64(x.written))
	return key
}
