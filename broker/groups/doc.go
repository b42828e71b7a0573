// Package groups coordinates consumer groups of both protocols and keeps committed offsets, with the behaviour of Kafka's
// GroupCoordinator: classic groups, whose leader assigns the partitions (classes GroupCoordinator, GroupMetadata,
// ClassicGroup; KIP-345, KIP-394, KIP-814), and consumer groups, where the broker does (GroupMetadataManager,
// ConsumerGroup; KIP-848).
//
//	handler ──Join, Sync, Heartbeat, Leave──▶ group (state machine, memory) ──row──▶ write queue ──▶ Storage
//	        ──ConsumerHeartbeat────────────▶         "                      ──rows─▶      "
//	        ──Commit, DeleteGroup, …───────▶ checks ────────────────────────row──▶      "
//	        ──Committed────────────────────────────────────────────────────────────────────────▶ Storage
//
// It knows nothing of the wire: the handlers of package broker turn requests into its structs and answers into replies.
//
// # States of classic groups
//
//	        first member              all rejoined, or time is up            leader's assignment is stored
//	Empty ───────────────▶ Preparing ───────────────────────────▶ Completing ─────────────────────────────▶ Stable
//	  ▲                    ▲ ▲   │                                    │                                       │
//	  │                    │ └───┼─── member leaves, expires, changes ┘                                       │
//	  └── no member left ──┼─────┘                                                                            │
//	                       └────────────── member leaves, expires, changes, or the leader rejoins ────────────┘
//
// Dead is a group that does not exist.
//
// # Consumer groups
//
//	       member, subscription or topic changes         next heartbeat              each member has what it was to have
//	Empty ───────────────────────────────────▶ Assigning ──────────────▶ Reconciling ──────────────────────────────────▶ Stable
//
// Each such change gives the group a new epoch. An assignor computes what each member shall have at that epoch, its target,
// and every heartbeat takes the member that sends it a step towards that (see reconcile). A member's epoch is that of the
// target which it has reached. A partition has one holder: who was told that it may use it, until it says that it does not
// any more, leaves, or is removed because it was silent or did not revoke in time.
//
// # Members of both kinds
//
// A classic group of consumers becomes a consumer group when a member joins with ConsumerHeartbeat, and goes on with the
// partitions that its members have. Members that use JoinGroup, SyncGroup and Heartbeat are served by the same
// reconciliation: their generation is the member's epoch, nobody leads, and REBALANCE_IN_PROGRESS makes them rejoin when
// there is something to tell. When only such members are left, the group is a classic one again.
//
// # Memory and rows
//
// A group is in memory while it has members (or ids handed out that have not joined) or while a request or write
// concerns it. All others are rows only, so their number is bounded by the store alone. A group with members is loaded
// at start, Stable as it was stored, with fresh session timers; a rebalance that was under way is not stored, and its
// members find out by the generation. Of a consumer group all is stored, each member in a row of its own, before anybody
// is told: it goes on where it was.
//
// Offsets are never cached. Commits of one group are written one batch at a time in the order in which they were
// checked, so that a commit that was accepted before a rebalance cannot overwrite one that was accepted after it.
//
// # Locks
//
// Each group has a mutex; nothing waits for the store's durability while it is held. A shard of the registry has a mutex
// that guards its map and the number of users of each group. A group's mutex may be held when a shard's is taken, not
// the other way round. Timers fire in goroutines of their own and lock the group; no group or member has a goroutine,
// except that a group has one while rows of it are being written.
package groups
