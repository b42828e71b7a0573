package groups

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

// Options configure a [Coordinator]. Durations have millisecond precision. The zero value of a field means its default.
type Options struct {
	// MinSessionTimeout and MaxSessionTimeout bound what members may ask for (group.min.session.timeout.ms and
	// group.max.session.timeout.ms). Defaults 6 s and 30 min.
	MinSessionTimeout, MaxSessionTimeout time.Duration
	// InitialRebalanceDelay is how long an empty group waits for more members after the first, and again while
	// members arrive, up to their largest rebalance timeout (group.initial.rebalance.delay.ms). Default 3 s;
	// negative: it does not wait.
	InitialRebalanceDelay time.Duration
	// MaxSize is the most members of a group (group.max.size). Default 2147483647.
	MaxSize int
	// ConsumerSessionTimeout is how long members of consumer groups (KIP-848) may be silent
	// (group.consumer.session.timeout.ms), ConsumerHeartbeatInterval what they are told to do
	// (group.consumer.heartbeat.interval.ms). Defaults 45 s and 5 s.
	ConsumerSessionTimeout, ConsumerHeartbeatInterval time.Duration
	// ConsumerMaxSize is the most members of a consumer group (group.consumer.max.size). Default 2147483647.
	ConsumerMaxSize int
	// MigrationPolicy says which groups with members change between the protocols
	// (group.consumer.migration.policy). Default MigrationBidirectional.
	MigrationPolicy MigrationPolicy
	// MaxOffsetMetadata is the longest text that may be committed with an offset, in UTF-16 code units as Kafka
	// counts (offset.metadata.max.bytes). Default 4096.
	MaxOffsetMetadata int
	// OffsetRetention is how long offsets are kept after their group became empty, or after the commit if the group
	// never had members (offsets.retention.minutes). Default 7 days.
	OffsetRetention time.Duration
	// CleanInterval is the time between two passes that remove expired offsets, offsets of deleted topics and groups
	// with neither members nor offsets (offsets.retention.check.interval.ms). Default 10 min.
	CleanInterval time.Duration
	// CommitTimeout is how long a request waits until what it changes is durable (offsets.commit.timeout.ms). A
	// change that takes longer is answered with COORDINATOR_NOT_AVAILABLE and may be made all the same. Default 5 s.
	CommitTimeout time.Duration

	// Logger receives the coordinator's log. Nil means no log.
	Logger *zap.Logger
	// Registerer receives the coordinator's metrics. Nil means none are registered.
	Registerer prometheus.Registerer
}

// Limits that Kafka does not have, or has elsewhere. They bound what clients can make the broker remember.
const (
	// maxGroupID is the longest group id in bytes: what Kafka's own rows can hold.
	maxGroupID = math.MaxInt16
	// maxProtocols is the most protocols one member may list. Clients list a few.
	maxProtocols = 256
	// maxGroupMetadata bounds the ids and the protocol metadata of all members of a group, in bytes. A group's row
	// holds them. Who would exceed it is refused with GROUP_MAX_SIZE_REACHED, and the others go on. Kafka lets it in,
	// cannot write the group's record then, and answers SyncGroup of all members with UNKNOWN_SERVER_ERROR (classes
	// GroupMetadataManager, CoordinatorOperationExceptionHelper): one such member stops the group.
	maxGroupMetadata = 32 << 20
	// maxPendingMembers is the most member ids that a group has handed out and that have not joined yet.
	maxPendingMembers = 10_000
)

// newMemberTimeout is how long a new member may wait in a join phase before it is taken for gone: it does not know its
// id yet, so it cannot send heartbeats (Kafka: NewMemberJoinTimeoutMs).
const newMemberTimeout = 5 * time.Minute

// EnsureDefaults fills the fields that are zero.
func (o *Options) EnsureDefaults() {
	setDefault(&o.MinSessionTimeout, 6*time.Second)
	setDefault(&o.MaxSessionTimeout, 30*time.Minute)
	setDefault(&o.InitialRebalanceDelay, 3*time.Second)
	setDefault(&o.MaxSize, math.MaxInt32)
	setDefault(&o.ConsumerSessionTimeout, 45*time.Second)
	setDefault(&o.ConsumerHeartbeatInterval, 5*time.Second)
	setDefault(&o.ConsumerMaxSize, math.MaxInt32)
	setDefault(&o.MigrationPolicy, MigrationBidirectional)
	setDefault(&o.MaxOffsetMetadata, 4096)
	setDefault(&o.OffsetRetention, 7*24*time.Hour)
	setDefault(&o.CleanInterval, 10*time.Minute)
	setDefault(&o.CommitTimeout, 5*time.Second)
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate reports everything that is wrong with the options, after EnsureDefaults.
func (o *Options) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("groups: "+format, args...))
		}
	}
	check(o.MinSessionTimeout >= time.Millisecond, "MinSessionTimeout is %s; it must be at least 1ms", o.MinSessionTimeout)
	check(o.MaxSessionTimeout >= o.MinSessionTimeout, "MaxSessionTimeout is %s; it must not be below MinSessionTimeout, %s", o.MaxSessionTimeout, o.MinSessionTimeout)
	check(o.MaxSize > 0, "MaxSize is %d; it must be positive", o.MaxSize)
	check(o.ConsumerHeartbeatInterval >= time.Millisecond, "ConsumerHeartbeatInterval is %s; it must be at least 1ms", o.ConsumerHeartbeatInterval)
	check(o.ConsumerSessionTimeout > o.ConsumerHeartbeatInterval, "ConsumerSessionTimeout is %s; it must be longer than ConsumerHeartbeatInterval, %s", o.ConsumerSessionTimeout, o.ConsumerHeartbeatInterval)
	check(o.ConsumerMaxSize > 0, "ConsumerMaxSize is %d; it must be positive", o.ConsumerMaxSize)
	check(o.MigrationPolicy.valid(), "MigrationPolicy is %q; it must be bidirectional, upgrade, downgrade or disabled", o.MigrationPolicy)
	check(o.MaxOffsetMetadata > 0, "MaxOffsetMetadata is %d; it must be positive", o.MaxOffsetMetadata)
	check(o.OffsetRetention >= time.Millisecond, "OffsetRetention is %s; it must be at least 1ms", o.OffsetRetention)
	check(o.CleanInterval >= time.Millisecond, "CleanInterval is %s; it must be at least 1ms", o.CleanInterval)
	check(o.CommitTimeout >= time.Millisecond, "CommitTimeout is %s; it must be at least 1ms", o.CommitTimeout)
	return errors.Join(errs...)
}
