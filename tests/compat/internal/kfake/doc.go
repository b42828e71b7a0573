// Package kfake stands in for the package of that name in franz-go when its tests are compiled: a Cluster is a broker
// process of its own instead of a fake one in memory, so the tests say what they know of Kafka about Brooklet.
//
// It has those names of the original that tests of a broker need, and means the same by them. What has no counterpart
// here (faults, scripted replies, the fake's files) is missing, and tests that need it are listed as not applicable. The
// environment variable BROOKLET_BINARY names the program.
package kfake
