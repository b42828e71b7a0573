// Package e2e tests the built binary with the clients that people use, with crashes, and with peers that mean harm.
//
// Each file has one theme: clients (the same duties for every client library), streams (named streams), admin, kcat,
// crash (kill -9, restarts, drain), takeover (two brokers), hostile (connections and batches made to hurt), protocol
// (single requests of chosen versions), memory and operations (probes and metrics).
package e2e
