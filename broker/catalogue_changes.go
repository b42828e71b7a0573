package broker

import (
	"context"
	"errors"
	"maps"
	"strings"
	"time"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/kafkaproto/ext"
	"github.com/brookletmq/brooklet/streamstore"
)

// creation is a topic or named stream to be made. Its name, partition count and config were checked.
type creation struct {
	name       string
	partitions int32
	overrides  map[string]string
	config     *topicConfig
}

// create makes topics and named streams, each with all its partitions or not at all, but for those whose checked error
// is set. The result holds a topic or an error for each; with dryRun it holds errors only. Errors: TOPIC_ALREADY_EXISTS, INVALID_TOPIC_EXCEPTION for a name that collides with
// another, POLICY_VIOLATION for too many partitions at once, and those of the store.
func (c *catalogue) create(ctx context.Context, wanted []creation, checked []*kafkaproto.Error, cause string, dryRun bool) ([]*topic, []*kafkaproto.Error) {
	names := make([]string, len(wanted))
	for i := range wanted {
		names[i] = wanted[i].name
	}
	made := make([]*topic, len(wanted))
	errs := c.change(ctx, names, checked, dryRun, func(p *plan, i int) *kafkaproto.Error {
		w := &wanted[i]
		if err := c.mayCreate(p, w); err != nil {
			return err
		}
		if err := p.addPartitions(w.partitions); err != nil {
			return err
		}
		if isStreamName(w.name) {
			c.planStream(p, w, cause, &made[i])
		} else {
			c.planTopic(p, w, cause, &made[i])
		}
		return nil
	})
	// A change that is still on its way may yet write to made, but only where errs has an error.
	topics := make([]*topic, len(wanted))
	for i, err := range errs {
		if err == nil {
			topics[i] = made[i]
		}
	}
	return topics, errs
}

var errTooManyPartitions = kafkaproto.ErrPolicyViolation.WithMessage("one request may create at most %d partitions", maxPartitionsPerRequest)

// addPartitions counts n more partitions against the limit of one request.
func (p *plan) addPartitions(n int32) *kafkaproto.Error {
	if p.newPartitions+int(n) > maxPartitionsPerRequest {
		return errTooManyPartitions
	}
	p.newPartitions += int(n)
	return nil
}

// mayCreate checks that the name is free, also among what the same plan creates.
func (c *catalogue) mayCreate(p *plan, w *creation) *kafkaproto.Error {
	if isStreamName(w.name) {
		_, err := c.store.Lookup(w.name)
		if err == nil {
			return kafkaproto.ErrTopicAlreadyExists
		}
		if !errors.Is(err, streamstore.ErrNoStream) {
			return storeError(err)
		}
		return nil
	}
	if _, ok := p.now.byName[w.name]; ok {
		return kafkaproto.ErrTopicAlreadyExists
	}
	folded := foldName(w.name)
	if other, ok := p.now.folded[folded]; ok {
		return kafkaproto.ErrInvalidTopic.WithMessage("topic %q collides with the existing topic %q: names must differ in more than '.' and '_'", w.name, other)
	}
	if p.folded[folded] {
		return kafkaproto.ErrInvalidTopic.WithMessage("topic %q collides with another topic of this request: names must differ in more than '.' and '_'", w.name)
	}
	p.folded[folded] = true
	return nil
}

func (c *catalogue) planTopic(p *plan, w *creation, cause string, made **topic) {
	row := topicRow{id: newTopicID(), created: time.Now().Truncate(time.Millisecond), partitions: w.partitions, overrides: w.overrides}
	first := p.createPartitions(w.name, 0, w.partitions, w.config.settings())
	p.txn.Set(topicRowKey(w.name), row.encode())
	p.edits = append(p.edits, func(next *snapshot, created []streamstore.StreamID) {
		t := &topic{name: w.name, id: row.id, created: row.created, config: w.config}
		t.partitions = append(t.partitions, created[first:first+int(w.partitions)]...)
		next.put(t)
		*made = t
		c.m.topicsCreated.WithLabelValues(cause).Inc()
	})
}

// createPartitions adds the streams of partitions from..to-1 and returns the index of the first in Result.Created.
func (p *plan) createPartitions(name string, from, to int32, s streamstore.Settings) int {
	first := -1
	for n := from; n < to; n++ {
		i := p.txn.Create(partitionStream(name, n), s)
		if first < 0 {
			first = i
		}
	}
	return first
}

func (c *catalogue) planStream(p *plan, w *creation, cause string, made **topic) {
	i := p.txn.Create(w.name, w.config.settings())
	p.after = append(p.after, func(created []streamstore.StreamID) {
		*made = c.streamTopic(streamstore.StreamInfo{ID: created[i], Name: w.name, Created: time.Now(), Settings: w.config.settings()})
		c.m.streamsCreated.WithLabelValues(cause).Inc()
	})
}

// delete removes topics and named streams with all their records, but for those whose checked error is set. A topic that is no longer the one given, because it
// was deleted and perhaps made again meanwhile, is UNKNOWN_TOPIC_OR_PARTITION.
func (c *catalogue) delete(ctx context.Context, topics []*topic, checked []*kafkaproto.Error) []*kafkaproto.Error {
	names := make([]string, len(topics))
	for i, t := range topics {
		if t != nil {
			names[i] = t.name
		}
	}
	return c.change(ctx, names, checked, false, func(p *plan, i int) *kafkaproto.Error {
		t := topics[i]
		if t.stream {
			return c.planStreamDeletion(p, t)
		}
		now, ok := p.now.byName[t.name]
		if !ok || now.id != t.id {
			return kafkaproto.ErrUnknownTopicOrPartition
		}
		for _, id := range now.partitions { // may have grown since t was looked up
			p.txn.Delete(id)
		}
		p.txn.Unset(topicRowKey(t.name))
		p.edits = append(p.edits, func(next *snapshot, _ []streamstore.StreamID) {
			next.remove(t.name)
			c.m.topicsDeleted.Inc()
		})
		p.after = append(p.after, func([]streamstore.StreamID) { c.deleted() })
		return nil
	})
}

func (c *catalogue) planStreamDeletion(p *plan, t *topic) *kafkaproto.Error {
	id := t.partitions[0]
	if _, err := c.store.Describe(id); err != nil {
		return storeError(err)
	}
	p.txn.Delete(id)
	p.after = append(p.after, func([]streamstore.StreamID) {
		c.streams.forget(t)
		c.m.streamsDeleted.Inc()
		c.deleted()
	})
	return nil
}

// extend raises partition counts, but for those whose checked error is set; totals[i] is the new count of names[i]. Errors: UNKNOWN_TOPIC_OR_PARTITION,
// INVALID_PARTITIONS unless the count grows, POLICY_VIOLATION for too many at once, and those of the store.
func (c *catalogue) extend(ctx context.Context, names []string, totals []int32, checked []*kafkaproto.Error, dryRun bool) []*kafkaproto.Error {
	return c.change(ctx, names, checked, dryRun, func(p *plan, i int) *kafkaproto.Error {
		t, ok := p.now.byName[names[i]]
		if !ok {
			return kafkaproto.ErrUnknownTopicOrPartition
		}
		if err := t.checkGrowth(totals[i]); err != nil {
			return err
		}
		have := int32(len(t.partitions))
		if err := p.addPartitions(totals[i] - have); err != nil {
			return err
		}
		first := p.createPartitions(t.name, have, totals[i], t.config.settings())
		p.txn.Set(topicRowKey(t.name), topicRow{id: t.id, created: t.created, partitions: totals[i], overrides: t.config.overrides}.encode())
		p.edits = append(p.edits, func(next *snapshot, created []streamstore.StreamID) {
			larger := *t
			larger.partitions = append(larger.partitions[:have:have], created[first:first+int(totals[i]-have)]...)
			next.put(&larger)
		})
		return nil
	})
}

// checkGrowth checks that a new partition count is larger than the present one.
func (t *topic) checkGrowth(count int32) *kafkaproto.Error {
	have := len(t.partitions)
	if int(count) > have {
		return nil
	}
	return kafkaproto.ErrInvalidPartitions.WithMessage("topic %q has %d partitions, so %d is no increase: partitions cannot be taken away", t.name, have, count)
}

// An alteration changes the config overrides of one topic or named stream: fn gets a copy of the present ones to change.
type alteration struct {
	name string
	fn   func(overrides map[string]string) *kafkaproto.Error
}

// alter changes the configs of topics and named streams, but for those whose checked error is set, and with them the
// retention of their streams. Errors: UNKNOWN_TOPIC_OR_PARTITION, those of fn, INVALID_CONFIG, and those of the store.
func (c *catalogue) alter(ctx context.Context, alterations []alteration, checked []*kafkaproto.Error, dryRun bool) []*kafkaproto.Error {
	names := make([]string, len(alterations))
	for i := range alterations {
		names[i] = alterations[i].name
	}
	return c.change(ctx, names, checked, dryRun, func(p *plan, i int) *kafkaproto.Error {
		t, err := c.byName(names[i])
		if err != nil {
			return err
		}
		now, err := c.configOf(t)
		if err != nil {
			return err
		}
		config, err := c.altered(t.name, now, alterations[i].fn)
		if err != nil {
			return err
		}
		if t.stream {
			c.planStreamConfig(p, t, config, alterations[i].fn)
		} else {
			c.planConfig(p, t, config)
		}
		return nil
	})
}

// altered returns a config after a change of its overrides.
func (c *catalogue) altered(name string, now *topicConfig, fn func(overrides map[string]string) *kafkaproto.Error) (*topicConfig, *kafkaproto.Error) {
	overrides := maps.Clone(now.overrides)
	if overrides == nil {
		overrides = map[string]string{}
	}
	if err := fn(overrides); err != nil {
		return nil, err
	}
	if err := keepClosed(now, overrides); err != nil {
		return nil, err
	}
	return c.defaultsFor(name).newConfig(overrides)
}

// keepClosed lets requests that replace all configs leave a closed stream closed, and refuses those that open it.
func keepClosed(now *topicConfig, overrides map[string]string) *kafkaproto.Error {
	if !now.closed {
		return nil
	}
	if v, ok := overrides[ext.ConfigClosed]; ok && strings.EqualFold(strings.TrimSpace(v), "false") {
		return kafkaproto.ErrInvalidConfig.WithMessage("the stream is closed for good: %s cannot be set to false", ext.ConfigClosed)
	}
	overrides[ext.ConfigClosed] = "true"
	return nil
}

// planStreamConfig makes the change once more of what the settings are when the transaction gets its turn: other doors
// than Kafka's change them too. config, what came of it now, says whether to close the stream, which only ever happens once.
func (c *catalogue) planStreamConfig(p *plan, t *topic, config *topicConfig, fn func(overrides map[string]string) *kafkaproto.Error) {
	id := t.partitions[0]
	p.txn.Reconfigure(id, func(s *streamstore.Settings) error {
		now := c.streamDefaults.storedConfig(streamOverrides(&streamstore.StreamInfo{Settings: *s}))
		changed, err := c.altered(t.name, now, fn)
		if err != nil {
			return err
		}
		changed.changeSettings(s)
		return nil
	})
	if config.closed {
		p.txn.Close(id)
	}
}

func (c *catalogue) planConfig(p *plan, t *topic, config *topicConfig) {
	for _, id := range t.partitions {
		p.txn.Configure(id, config.settings())
	}
	p.txn.Set(topicRowKey(t.name), topicRow{id: t.id, created: t.created, partitions: int32(len(t.partitions)), overrides: config.overrides}.encode())
	p.edits = append(p.edits, func(next *snapshot, _ []streamstore.StreamID) {
		changed := *t
		changed.config = config
		next.put(&changed)
	})
}

// defaultsFor returns the defaults that hold for a topic or named stream of this name.
func (c *catalogue) defaultsFor(name string) *configDefaults {
	if isStreamName(name) {
		return c.streamDefaults
	}
	return c.topicDefaults
}

// configOf returns the config of t as it is now.
func (c *catalogue) configOf(t *topic) (*topicConfig, *kafkaproto.Error) {
	if !t.stream {
		return t.config, nil
	}
	info, err := c.store.Describe(t.partitions[0])
	if err != nil {
		return nil, storeError(err)
	}
	return c.streamDefaults.storedConfig(streamOverrides(&info)), nil
}
