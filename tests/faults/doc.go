// Package faults kills brokers under load, again and again, while their bucket misbehaves, and then holds them to every
// word that they gave.
//
// The brokers are the real binary, the clients are franz-go and single requests, and the bucket is an S3 service of this
// package that fails in the ways in which services do: errors, throttling, answers that get lost after the effect,
// requests that take effect long after the client has given up, transfers that break off or change on the way.
//
// A round (round_test.go) is a number of kills of one kind of cluster. Meanwhile
//
//   - an idempotent producer that never gives up writes numbers: each must be there once, at its number,
//   - a producer without idempotence writes others: what was acknowledged must be at the offset of the acknowledgement,
//     and what is there must have been sent,
//   - one writes to a partition that is trimmed all the time,
//   - streams are made, trimmed, deleted and made again under the same names, and others delete themselves: what is gone must
//     never come back (churn_test.go),
//   - consumers follow and read again from the start: whatever one has seen, all others must see until the end,
//   - single appends, appends on condition and reads of a few hot streams make a history that must be linearizable
//     (history_test.go).
//
// All thresholds are tiny, so that each round sees compactions, checkpoints, deletions of objects and starts from
// checkpoints on empty disks; a round in which one of them is missing fails (bucket_test.go). In the end the bucket is
// checked from outside, cleaned up, and checked again.
//
// The tests of disks and objects that are full, read-only or damaged are in disk_test.go and, where the product's own
// clock or file system has to be replaced, in streamstore/*_faults_test.go.
//
// Everything random comes from the seed that is printed. Flags of the test program:
//
//	-faults.seed N      one round with this seed
//	-faults.kills N     kills in all, 21 by default
//	-faults.time D      rounds with ever new seeds for this long
//	-faults.scenario S  only scenarios whose names contain this
//	-faults.flags F     more flags for all brokers, separated by spaces
//	-faults.log         print what is done to the brokers
package faults
