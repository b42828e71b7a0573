// Command compat runs the clients that people use against the brooklet binary: all of them carry out the same list of
// duties (package duty), and the command line tools of Kafka their own.
//
// It installs what it needs, in pinned versions, from the registries of the languages and of Debian into a cache folder,
// and needs no network when that folder is filled. Each duty is a child process with a time limit. The result is a table
// on standard output and, after a run of everything, docs/compatibility.md. The exit code is 0 if no duty failed.
//
//	go run ./tests/compat -client kafkajs,kcat -duty group
//
//	main.go         flags and order of events
//	broker.go       the broker under test
//	install.go      the cache folder
//	clients.go      the clients: where they come from and how they are started
//	check.go        what the broker has, as seen by another client
//	tools.go        the command line tools of Kafka
//	suites.go       tests that clients bring along; suite_*.go are those of franz-go and Sarama
//	prune.go        leaves tests that do not apply out of the source of a suite
//	objectstore.go  a real S3 server below the broker
//	report.go       tables
package main
