package streamstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/brookletmq/brooklet/objstore"
)

// Garbage among the checkpoints and in the log. The proofs are those of the owner of the
// shard (checkpoint.go), with one difference: who looks at a bucket from outside makes no
// commit. In place of the fence it asks that the newest checkpoint is by the writer at the
// end of the log, which was followed after that checkpoint was listed. That writer builds
// upon the checkpoint or later ones. Whoever claims the shard next finds it, and builds
// upon it or a later one, or begins with a base. And fenced writers, which may publish
// what they had under way, can harm nobody: an owner counts none of their checkpoints
// without a look at the parts.
//
// The two checkpoints that are kept are read as a whole first: what is older must not go
// on the strength of one that is damaged.

// checkCheckpoints finds the checkpoints that are kept and proves that they are whole.
// Those that are not are problems.
func (v *bucketView) checkCheckpoints(ctx context.Context) error {
	numbers := slices.Clone(v.numbers)
	bad, good := make(map[partName]bool), make(map[partName]bool)
	read := func(number uint64) (*manifest, error) {
		m, err := v.store.checkpoints.manifest(ctx, number)
		if m == nil && err == nil {
			_, err = v.store.readManifest(ctx, number)
			return nil, v.damagedCheckpoint(ctx, number, checkpointName(v.store.opts.Shard, number), err)
		}
		return m, err
	}
	for {
		var err error
		if v.kept, err = keep(numbers, read); err != nil {
			return err
		}
		damaged := uint64(0)
		for _, m := range []*manifest{v.kept.newest, v.kept.other} {
			if m == nil || damaged > 0 {
				continue
			}
			whole, err := v.checkParts(ctx, m, good, bad)
			if err != nil {
				return err
			}
			if !whole {
				damaged = m.position.number
			}
		}
		if damaged == 0 {
			return nil
		}
		numbers = slices.DeleteFunc(numbers, func(n uint64) bool { return n == damaged })
	}
}

// checkParts reads the parts of a checkpoint that were not read before.
func (v *bucketView) checkParts(ctx context.Context, m *manifest, good, bad map[partName]bool) (whole bool, err error) {
	for i := range m.parts {
		p := &m.parts[i]
		if bad[p.name] {
			return false, nil
		}
		if good[p.name] {
			continue
		}
		_, err := v.store.readPart(ctx, p)
		if errors.Is(err, ErrCorrupt) {
			bad[p.name] = true
			return false, v.damagedCheckpoint(ctx, m.position.number, p.name.object(m.shard), err)
		}
		if err != nil {
			return false, err
		}
		good[p.name] = true
	}
	return true, nil
}

// damagedCheckpoint reports damage, unless the checkpoint has been cleaned up meanwhile.
func (v *bucketView) damagedCheckpoint(ctx context.Context, number uint64, object string, damage error) error {
	if damage != nil && !errors.Is(damage, ErrCorrupt) {
		return damage
	}
	now, err := v.store.listCheckpoints(ctx)
	if err != nil || damage == nil || !slices.Contains(now, number) {
		return err
	}
	problem := BucketProblem{Object: object, Err: damage}
	if !slices.ContainsFunc(v.report.Problems, func(p BucketProblem) bool { return p.Object == object }) {
		v.report.Problems = append(v.report.Problems, problem)
	}
	return nil
}

// ownersCheckpoint tells why nothing that is older than the newest checkpoint may go: "" if
// it may.
func (v *bucketView) ownersCheckpoint() string {
	switch m, end := v.kept.newest, v.follower.position; {
	case m == nil:
		return "there is no checkpoint that can be read"
	case m.position.epoch != end.epoch || m.position.nonce != end.nonce:
		return "the present writer has made no checkpoint yet"
	}
	return ""
}

// findCheckpoints reports the checkpoints that are not kept, and the parts that were listed
// and that no checkpoint names.
func (v *bucketView) findCheckpoints(ctx context.Context) error {
	s := v.store
	numbers, err := s.listCheckpoints(ctx) // again: what was made since names parts as well
	if err != nil {
		return err
	}
	named := make(map[partName]bool)
	sequence, passed := uint64(0), false // highest of the present writer in a checkpoint
	reason, kept := v.ownersCheckpoint(), proof{}
	if v.kept.newest != nil {
		kept = v.kept.proof(0)
	}
	for _, number := range numbers {
		m, err := s.readManifest(ctx, number)
		if err != nil && !errors.Is(err, ErrCorrupt) {
			return err
		}
		obsolete := number < kept.newest && !kept.has(number)
		if obsolete {
			g := GarbageObject{Name: checkpointName(s.opts.Shard, number), InUse: reason, Checkpoint: true, since: time.UnixMilli(v.kept.newest.created)}
			if m != nil {
				g.Bytes, g.Created = int64(len(m.encode())), time.UnixMilli(m.created)
			}
			v.report.Garbage = append(v.report.Garbage, g)
		}
		if m == nil {
			continue
		}
		for i := range m.parts {
			name := m.parts[i].name
			// The parts of an obsolete checkpoint go when it is gone: the next time.
			named[name] = true
			if name.nonce == v.follower.position.nonce {
				sequence, passed = max(sequence, name.sequence), true
			}
		}
	}
	for _, info := range v.parts {
		name, ok := parsePartName(s.opts.Shard, info.Name)
		if ok && named[name] {
			continue
		}
		g := GarbageObject{Name: info.Name, Bytes: info.Size, InUse: "it is none of Brooklet's names"}
		if ok {
			if g.InUse = reason; reason == "" {
				g.InUse = v.mayBeNamed(name, sequence, passed)
				g.since = time.UnixMilli(v.kept.newest.created)
			}
		}
		there, err := v.stillThere(ctx, info.Name)
		if err != nil {
			return err
		}
		if there {
			v.report.Garbage = append(v.report.Garbage, g)
		}
	}
	return nil
}

// mayBeNamed tells why a checkpoint may still come to name a part that none names. A
// writer makes one checkpoint after the other, and numbers the parts in that order.
func (v *bucketView) mayBeNamed(name partName, sequence uint64, passed bool) string {
	switch end := v.follower.position; {
	case name.epoch > end.epoch:
		return "a writer that is newer than the end of the log has made it"
	case name.nonce != end.nonce || passed && name.sequence < sequence:
		return ""
	}
	return "the present writer may be about to name it"
}

// findLogObjects reports the log objects that checkpoints cover and that hold no live
// records. Those that hold records once have a row until the owner deletes them.
func (v *bucketView) findLogObjects(ctx context.Context) error {
	s := v.store
	if v.ownersCheckpoint() != "" || v.kept.covered() == 0 {
		return nil
	}
	needed := make(map[uint64]bool)
	note := func(o objectID) {
		if o.kind == objectLog {
			needed[o.number] = true
		}
	}
	err := eachRow(ctx, s.db, prefixObject, func(key, _ []byte) error {
		o, err := decodeObjectKey(key)
		note(o)
		return err
	})
	if err != nil {
		return fmt.Errorf("object rows: %w", err)
	}
	err = eachRow(ctx, s.db, prefixExtent, func(key, value []byte) error {
		x, err := decodeExtent(key, value)
		note(x.object)
		return err
	})
	if err != nil {
		return fmt.Errorf("extent rows: %w", err)
	}
	for _, info := range v.log {
		number, ok := parseLogName(s.opts.Shard, info.Name)
		if ok && (needed[number] || number >= v.kept.covered()) {
			continue
		}
		g := GarbageObject{Name: info.Name, Bytes: info.Size, InUse: "it is none of Brooklet's names"}
		if ok {
			g.InUse, g.since = "", time.UnixMilli(v.kept.newest.created)
			var h commitHeader
			err := retry(ctx, s.log, "reading the commit log", func() (err error) {
				h, err = s.readCommitHeader(ctx, info.Name)
				return ignoreMissing(err)
			})
			if err != nil && !errors.Is(err, ErrCorrupt) {
				return err
			}
			if err == nil && h.number == 0 {
				continue // deleted since it was listed
			}
			if err == nil {
				g.Created = time.UnixMilli(h.created)
			}
		}
		v.report.Garbage = append(v.report.Garbage, g)
	}
	return nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, objstore.ErrNotFound) {
		return nil
	}
	return err
}

// stillThere reports whether an object that was listed has not been deleted since.
func (v *bucketView) stillThere(ctx context.Context, name string) (there bool, err error) {
	err = retry(ctx, v.store.log, "looking for an object", func() error {
		_, err := v.store.opts.Bucket.GetRange(ctx, name, 0, 1)
		there = err == nil || errors.Is(err, objstore.ErrTruncated)
		if there {
			return nil
		}
		return ignoreMissing(err)
	})
	return there, err
}
