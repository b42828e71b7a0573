// Package groups coordinates classic consumer groups and keeps committed offsets, with the behaviour of Kafka's
// GroupCoordinator (classes GroupCoordinator, GroupMetadata, ClassicGroup; KIP-345, KIP-394, KIP-814).
//
//	handler ──Join, Sync, Heartbeat, Leave──▶ group (state machine, memory) ──row──▶ write queue ──▶ Storage
//	        ──Commit, DeleteGroup, …───────▶ checks ────────────────────────row──▶      "
//	        ──Committed────────────────────────────────────────────────────────────────────────▶ Storage
//
// It knows nothing of the wire: the handlers of package broker turn requests into its structs and answers into replies.
//
// # States
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
// # Memory and rows
//
// A group is in memory while it has members (or ids handed out that have not joined) or while a request or write
// concerns it. All others are rows only, so their number is bounded by the store alone. A group with members is loaded
// at start, Stable as it was stored, with fresh session timers; a rebalance that was under way is not stored, and its
// members find out by the generation.
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
