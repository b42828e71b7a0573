// Command brooklet is the message broker and its tools: one file per command.
//
// # How serve is put together
//
//	options.go   every setting: flag, environment variable, help text, parser
//	settings.go  what the settings mean together; all that is wrong is reported at once
//	memory.go    sizes of caches, derived from the memory that this process may use
//	address.go   listen addresses and the one that clients are told
//	node.go      the running process: admin endpoint, bucket, store, broker, Kafka listener
//	systemd.go   readiness and watchdog messages for the service manager
//
// # How the commands that ask a broker are put together
//
//	client.go          the connection, the flags that all of them have, what errors say
//	output.go          tables for people, JSON for programs
//	topics.go, topics_change.go, configs.go, groups.go, groups_offsets.go
//
// # Exit codes
//
//	0  done; for serve: stopped by a signal, everything is in the bucket or on the disk
//	1  failed; for serve: could not start, or could not go on
//	2  wrong settings or arguments; starting again with the same ones is of no use
//	3  another writer has taken the shard over; starting again would take it back
package main

//go:generate go run . docs configuration ../../docs/configuration.md
//go:generate go run . docs environment ../../deploy/brooklet.env
