package groups

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
)

// maxCleaning is the most groups that a pass cleans at once. Each costs a goroutine and a place in the storage's next
// commit.
const maxCleaning = 128

// cleanRest is how long the cleaner rests after it has looked for offsets of deleted topics, as a multiple of the time that
// it took: each look reads the offsets of all groups, and there may be one topic after the other.
const cleanRest = 9

// cleanLoop makes a pass each CleanInterval, and removes offsets of deleted topics when it is told that there are some.
func (c *Coordinator) cleanLoop() {
	timer := time.NewTicker(c.opts.CleanInterval)
	defer timer.Stop()
	for {
		clean, rest := c.Clean, 0
		select {
		case <-timer.C:
		case <-c.topicsDeleted:
			clean, rest = c.cleanDeletedTopics, cleanRest
		case <-c.ctx.Done():
			return
		}
		began := time.Now()
		if err := clean(c.ctx); err != nil && c.ctx.Err() == nil {
			c.log.Warn("clean-up of groups failed; it is tried again at the next pass", zap.Error(err))
		}
		select {
		case <-time.After(time.Since(began) * time.Duration(rest)):
		case <-c.ctx.Done():
			return
		}
	}
}

// TopicsDeleted tells that topics have been deleted. What groups have committed for them cannot be seen from then on, and
// is removed soon. It does not wait.
func (c *Coordinator) TopicsDeleted() {
	select {
	case c.topicsDeleted <- struct{}{}:
	default: // the next look is yet to begin
	}
}

// cleanDeletedTopics cleans the groups that have offsets of topics that are gone.
func (c *Coordinator) cleanDeletedTopics(ctx context.Context) error {
	var names []string
	known := topicIDs{topics: c.topics}
	err := c.storage.Scan([]byte(offsetPrefix), func(key, value []byte) error {
		group, topic, err := parseOffsetOwner(key)
		if n := len(names); err != nil || n > 0 && names[n-1] == group {
			return ctx.Err() // of one that cannot be read, requests tell
		}
		row, err := decodeOffsetRow(value)
		if err != nil {
			return ctx.Err()
		}
		id, ok, err := known.get(topic)
		if err != nil {
			return err
		}
		if !ok || id != row.topicID {
			names = append(names, group)
		}
		return ctx.Err()
	})
	if err != nil {
		return err
	}
	return c.cleanGroups(ctx, names)
}

// Clean makes one pass: it removes offsets that have expired or whose topic is gone, and groups that have neither members
// nor offsets then. It returns when all of that is done; failures of single groups are logged, and made up for by a later
// pass.
func (c *Coordinator) Clean(ctx context.Context) error {
	var names []string
	err := c.storage.Scan([]byte(groupPrefix), func(key, _ []byte) error {
		names = append(names, strings.TrimPrefix(string(key), groupPrefix))
		return ctx.Err()
	})
	if err != nil {
		return err
	}
	for i := range c.shards { // those whose writes have failed may have no row
		s := &c.shards[i]
		s.Lock()
		names = slices.AppendSeq(names, maps.Keys(s.groups))
		s.Unlock()
	}
	return c.cleanGroups(ctx, names)
}

// cleanGroups cleans the groups of these names, which it sorts, and returns when that is done.
func (c *Coordinator) cleanGroups(ctx context.Context, names []string) error {
	slices.Sort(names)
	names = slices.Compact(names)
	var cleaning sync.WaitGroup
	defer cleaning.Wait()
	room := make(chan struct{}, maxCleaning)
	for _, name := range names {
		select {
		case room <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		g, err := c.enter(name)
		if err != nil { // logged by enter
			<-room
			continue
		}
		cleaning.Add(1)
		g.clean(func() {
			cleaning.Done()
			<-room
		})
		c.leave(g)
	}
	return nil
}

// clean queues the clean-up of a group. What has expired is found when all writes before it are done, so that a commit
// that is on its way is not taken for an old one; a commit that comes later is written later.
func (g *group) clean(done func()) {
	expired := g.expiry(time.Now())
	removed := 0
	var row []Change
	g.flush(nil) // what could not be written
	if g.unsaved && g.state == Empty {
		row = append(row, g.emptyRow())
	}
	g.enqueue(&write{
		prepare: func() ([]Change, error) {
			changes, left, err := g.findExpired(expired)
			if err != nil {
				return nil, err
			}
			removed = len(changes)
			changes = append(changes, row...)
			if left == 0 && g.tryVanish() {
				return g.removeRows(changes)
			}
			return changes, nil
		},
		done: func(err error) {
			if err == nil {
				g.c.m.expiredOffsets.Add(float64(removed))
				g.unsaved = g.unsaved && len(row) == 0
			} else {
				g.reappear()
			}
			done()
		},
	})
}

// tryVanish makes an empty group without offsets one that does not exist, unless somebody has come for it meanwhile. It
// is called by the writer.
func (g *group) tryVanish() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.state != Empty || len(g.queue) > 0 || len(g.pending) > 0 {
		return false
	}
	g.vanish()
	return true
}

// removeRows adds the removal of the rows of a group and its members.
func (g *group) removeRows(changes []Change) ([]Change, error) {
	changes = append(changes, Change{Key: groupKey(g.name)})
	err := g.c.storage.Scan(membersKey(g.name), func(key, _ []byte) error {
		changes = append(changes, Change{Key: slices.Clone(key)})
		return nil
	})
	return changes, err
}

// expiry returns the rule by which offsets of the group expire now (Kafka: GroupMetadata.removeExpiredOffsets):
//
//   - no members, but there were some: by the time when the last one left, or that of the commit if it came later;
//   - never members: by the time of the commit;
//   - a Stable group of consumers, or one whose partitions the broker assigns: by the time of the commit, if they do not read the topic;
//   - otherwise not at all: in a rebalance it is not known what members read.
func (g *group) expiry(now time.Time) func(topic string, row *offsetRow) bool {
	retention, since := g.c.opts.OffsetRetention, g.since
	byCommit := func(row *offsetRow) bool { return now.Sub(row.committed) >= retention }
	switch {
	case g.state == Empty && g.protocolType != "":
		return func(_ string, row *offsetRow) bool { return now.Sub(since) >= retention && byCommit(row) }
	case g.state == Empty:
		return func(_ string, row *offsetRow) bool { return byCommit(row) }
	case g.hasConsumers(), g.state == Stable && g.protocolType == consumerProtocol:
		subscribed := g.subscription()
		return func(topic string, row *offsetRow) bool { return !subscribed.has(topic) && byCommit(row) }
	}
	return func(string, *offsetRow) bool { return false }
}

// findExpired returns the removal of offsets that have expired or whose topic is gone, and how many others there are.
func (g *group) findExpired(expired func(string, *offsetRow) bool) (changes []Change, left int, err error) {
	known := topicIDs{topics: g.c.topics}
	err = g.c.scanOffsets(g.name, func(topic string, partition int32, row *offsetRow) error {
		id, ok, err := known.get(topic)
		if err != nil {
			return err
		}
		if ok && id == row.topicID && !expired(topic, row) {
			left++
			return nil
		}
		changes = append(changes, Change{Key: offsetKey(g.name, topic, partition)})
		return nil
	})
	return changes, left, err
}
