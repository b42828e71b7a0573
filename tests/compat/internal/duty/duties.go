package duty

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Env is what a duty has to work with.
type Env struct {
	Client Client
	Topic  string // does not exist, but for the duty "group", which finds it with Partitions partitions
	Group  string
}

// Partitions is the number of partitions of the topic of the duty "group".
const Partitions = 4

// Duty is one thing that clients do.
type Duty struct {
	Name, Checks string
	Run          func(context.Context, Env) error
}

// Duties are all of them.
var Duties = []Duty{
	{"roundtrip", "creates a topic by producing to it, with and without keys, and reads it from the start: bytes, keys, headers and timestamps are the same", roundTrip("none", false)},
	{"gzip", "the same with gzip", roundTrip("gzip", false)},
	{"snappy", "the same with snappy", roundTrip("snappy", false)},
	{"lz4", "the same with lz4", roundTrip("lz4", false)},
	{"zstd", "the same with zstd", roundTrip("zstd", false)},
	{"idempotent", "the same with an idempotent producer", roundTrip("none", true)},
	{"stream", "the same on a named stream, a topic such as `compat/kafkajs/stream`", roundTrip("none", false)},
	{"seek-time", "finds the first record at or after a time and reads from there", seekTime},
	{"group", "a second member of a group gets half of the partitions, each record is read by one of the two, and when one leaves the other takes over where it stopped", twoMembers},
	{"resume", "a consumer reads some records, commits and leaves; the next one of the group reads the rest, none twice", resume},
	{"topics", "creates, lists, describes and deletes a topic", topics},
	{"configs", "describes and changes the configuration of a topic", configs},
	{"groups", "lists and describes a group, while it has a member and after, and deletes it", groups},
}

const records = 300

func roundTrip(codec string, idempotent bool) func(context.Context, Env) error {
	return func(ctx context.Context, e Env) error {
		want := Records(0, records)
		if err := e.Client.Produce(ctx, e.Topic, ProduceOptions{codec, idempotent}, want); err != nil {
			return fmt.Errorf("producing: %w", err)
		}
		got, err := e.Client.Consume(ctx, e.Topic, time.Time{}, len(want))
		if err != nil {
			return fmt.Errorf("consuming: %w", err)
		}
		return Compare(got, want, e.Client.Lacks())
	}
}

func seekTime(ctx context.Context, e Env) error {
	const target = 40
	if e.Client.Lacks().Times {
		return NotApplicable("it cannot set timestamps")
	}
	want := Records(0, 100)
	if err := e.Client.Produce(ctx, e.Topic, ProduceOptions{Codec: "none"}, want); err != nil {
		return fmt.Errorf("producing: %w", err)
	}
	// Half a second before the target: the time lies between two records.
	got, err := e.Client.Consume(ctx, e.Topic, TimeOf(target).Add(-time.Second/2), len(want)-target)
	if err != nil {
		return fmt.Errorf("consuming: %w", err)
	}
	return Compare(got, want[target:], e.Client.Lacks())
}

func twoMembers(ctx context.Context, e Env) error {
	first, err := e.Client.Join(ctx, e.Group, e.Topic)
	if err != nil {
		return fmt.Errorf("joining: %w", err)
	}
	defer func() { _ = first.Close(ctx) }() // its errors are of no interest after others
	if err := await(ctx, "the first member to have all partitions", func() bool { return len(first.Partitions()) == Partitions }); err != nil {
		return err
	}
	second, err := e.Client.Join(ctx, e.Group, e.Topic)
	if err != nil {
		return fmt.Errorf("joining as second member: %w", err)
	}
	split := func() bool {
		all := slices.Concat(first.Partitions(), second.Partitions())
		slices.Sort(all)
		return len(first.Partitions()) == Partitions/2 && slices.Equal(all, []int32{0, 1, 2, 3})
	}
	if err := await(ctx, "the partitions to be split", split); err != nil {
		return fmt.Errorf("%w; they are %v and %v", err, first.Partitions(), second.Partitions())
	}
	batch := Spread(Records(0, 40), Partitions)
	if err := e.Client.Produce(ctx, e.Topic, ProduceOptions{Codec: "none"}, batch); err != nil {
		return fmt.Errorf("producing: %w", err)
	}
	both := func() []Record { return slices.Concat(first.Records(), second.Records()) }
	if err := await(ctx, "the two members to read all records", func() bool { return len(both()) >= len(batch) }); err != nil {
		return fmt.Errorf("%w; they have %d of %d", err, len(both()), len(batch))
	}
	if len(second.Records()) == 0 || len(first.Records()) == 0 {
		return fmt.Errorf("one member has read all records")
	}
	if err := CompareSets(both(), batch); err != nil {
		return fmt.Errorf("two members: %w", err)
	}
	seen := len(first.Records())
	if err := second.Close(ctx); err != nil {
		return fmt.Errorf("leaving: %w", err)
	}
	if err := await(ctx, "the partitions to return", func() bool { return len(first.Partitions()) == Partitions }); err != nil {
		return err
	}
	batch = Spread(Records(40, 80), Partitions)
	if err := e.Client.Produce(ctx, e.Topic, ProduceOptions{Codec: "none"}, batch); err != nil {
		return fmt.Errorf("producing: %w", err)
	}
	if err := await(ctx, "the remaining member to read all records", func() bool { return len(first.Records()) >= seen+len(batch) }); err != nil {
		return fmt.Errorf("%w; it has %d of %d", err, len(first.Records())-seen, len(batch))
	}
	return CompareSets(first.Records()[seen:], batch)
}

func resume(ctx context.Context, e Env) error {
	want := Records(0, 100)
	if err := e.Client.Produce(ctx, e.Topic, ProduceOptions{Codec: "none"}, want); err != nil {
		return fmt.Errorf("producing: %w", err)
	}
	const stop = 40
	got, err := e.Client.ReadAndCommit(ctx, e.Group, e.Topic, stop)
	if err != nil {
		return fmt.Errorf("reading the first part: %w", err)
	}
	rest, err := e.Client.ReadAndCommit(ctx, e.Group, e.Topic, len(want)-stop)
	if err != nil {
		return fmt.Errorf("reading the rest: %w", err)
	}
	return Compare(append(got, rest...), want, e.Client.Lacks())
}

func topics(ctx context.Context, e Env) error {
	return withAdmin(ctx, e, func(admin Admin) error {
		if err := admin.CreateTopic(ctx, e.Topic, 3, nil); err != nil {
			return fmt.Errorf("creating: %w", err)
		}
		if n, err := admin.Partitions(ctx, e.Topic); err != nil || n != 3 {
			return fmt.Errorf("the new topic has %d partitions, want 3 (%v)", n, err)
		}
		if err := listed(ctx, admin.ListTopics, e.Topic, true); err != nil {
			return err
		}
		if err := admin.DeleteTopic(ctx, e.Topic); err != nil {
			return fmt.Errorf("deleting: %w", err)
		}
		return listed(ctx, admin.ListTopics, e.Topic, false)
	})
}

func configs(ctx context.Context, e Env) error {
	return withAdmin(ctx, e, func(admin Admin) error {
		const name = "retention.ms"
		if err := admin.CreateTopic(ctx, e.Topic, 1, map[string]string{name: "3600000"}); err != nil {
			return fmt.Errorf("creating: %w", err)
		}
		if value, err := admin.TopicConfig(ctx, e.Topic, name); err != nil || value != "3600000" {
			return fmt.Errorf("%s is %q after creation, want 3600000 (%v)", name, value, err)
		}
		if err := admin.SetTopicConfig(ctx, e.Topic, name, "7200000"); err != nil {
			return fmt.Errorf("altering: %w", err)
		}
		if value, err := admin.TopicConfig(ctx, e.Topic, name); err != nil || value != "7200000" {
			return fmt.Errorf("%s is %q after the change, want 7200000 (%v)", name, value, err)
		}
		return nil
	})
}

func groups(ctx context.Context, e Env) error {
	return withAdmin(ctx, e, func(admin Admin) error {
		if err := e.Client.Produce(ctx, e.Topic, ProduceOptions{Codec: "none"}, Records(0, 10)); err != nil {
			return fmt.Errorf("producing: %w", err)
		}
		member, err := e.Client.Join(ctx, e.Group, e.Topic)
		if err != nil {
			return fmt.Errorf("joining: %w", err)
		}
		if err := await(ctx, "the member to read", func() bool { return len(member.Records()) == 10 }); err != nil {
			return err
		}
		if err := described(ctx, admin, e.Group, "Stable", 1); err != nil {
			return err
		}
		if err := listed(ctx, admin.ListGroups, e.Group, true); err != nil {
			return err
		}
		if err := member.Close(ctx); err != nil {
			return fmt.Errorf("leaving: %w", err)
		}
		if err := described(ctx, admin, e.Group, "Empty", 0); err != nil {
			return err
		}
		if err := admin.DeleteGroup(ctx, e.Group); err != nil {
			return fmt.Errorf("deleting: %w", err)
		}
		return listed(ctx, admin.ListGroups, e.Group, false)
	})
}

func withAdmin(ctx context.Context, e Env, f func(Admin) error) error {
	admin, err := e.Client.Admin(ctx)
	if err != nil {
		return err
	}
	defer admin.Close()
	return f(admin)
}

func described(ctx context.Context, admin Admin, group, wantState string, wantMembers int) error {
	state, members, err := admin.DescribeGroup(ctx, group)
	if err != nil {
		return fmt.Errorf("describing the group: %w", err)
	}
	if state != wantState || members != wantMembers {
		return fmt.Errorf("the group is %s with %d members, want %s with %d", state, members, wantState, wantMembers)
	}
	return nil
}

// listed awaits that a list has a name, or no longer has it: clients may answer from what they learned a moment ago.
func listed(ctx context.Context, list func(context.Context) ([]string, error), name string, want bool) error {
	var names []string
	var err error
	waited := await(ctx, fmt.Sprintf("the list to have %s: %v", name, want), func() bool {
		names, err = list(ctx)
		return err != nil || slices.Contains(names, name) == want
	})
	if err != nil {
		return fmt.Errorf("listing: %w", err)
	}
	if waited != nil {
		return fmt.Errorf("%w; it is %v", waited, names)
	}
	return nil
}

// await looks until a condition holds. Libraries do not tell of all that happens in them, so it has to look.
func await(ctx context.Context, what string, condition func() bool) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, ctx.Err())
		}
	}
	return nil
}
