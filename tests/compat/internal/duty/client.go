package duty

import (
	"context"
	"time"
)

// Client is a client library.
type Client interface {
	// Version is the version of the library.
	Version() string
	// Lacks tells what the library cannot express.
	Lacks() Lacks
	// Produce writes records, in order per partition, to a topic that may have to be created.
	Produce(ctx context.Context, topic string, o ProduceOptions, records []Record) error
	// Consume reads n records of partition 0 without a group: from the first at or after a time, or from the start if
	// the time is zero.
	Consume(ctx context.Context, topic string, from time.Time, n int) ([]Record, error)
	// Join makes a member of a group that starts at the earliest records if nothing is committed, and reads and commits
	// until it is closed.
	Join(ctx context.Context, group, topic string) (Member, error)
	// ReadAndCommit reads n records as the only member of a group, commits the position behind the last of them, and
	// leaves.
	ReadAndCommit(ctx context.Context, group, topic string, n int) ([]Record, error)
	// Admin returns the administration client.
	Admin(ctx context.Context) (Admin, error)
}

// ProduceOptions are settings of a producer.
type ProduceOptions struct {
	Codec      string // none, gzip, snappy, lz4 or zstd
	Idempotent bool
}

// Member is a live member of a group.
type Member interface {
	// Partitions are those assigned to it now, sorted.
	Partitions() []int32
	// Records are those that it has read since it joined.
	Records() []Record
	// Close leaves the group; the positions of what Records has returned are committed.
	Close(ctx context.Context) error
}

// Admin is the administration client of a library.
type Admin interface {
	CreateTopic(ctx context.Context, topic string, partitions int32, configs map[string]string) error
	ListTopics(ctx context.Context) ([]string, error)
	// Partitions counts those of a topic.
	Partitions(ctx context.Context, topic string) (int, error)
	DeleteTopic(ctx context.Context, topic string) error

	TopicConfig(ctx context.Context, topic, name string) (string, error)
	SetTopicConfig(ctx context.Context, topic, name, value string) error

	ListGroups(ctx context.Context) ([]string, error)
	// DescribeGroup returns the state of a group and how many members it has.
	DescribeGroup(ctx context.Context, group string) (state string, members int, err error)
	DeleteGroup(ctx context.Context, group string) error
	Close()
}

// NotApplicable says why a client cannot carry out a duty.
type NotApplicable string

func (e NotApplicable) Error() string { return string(e) }
