// Package harness runs the real brooklet binary for tests and talks to it.
//
// [Main] builds the binary once per test program. [Start] runs it on free ports with folders of its own and waits until
// it is ready; the returned [Broker] can be stopped, killed and started again under the same addresses. The log of a
// broker is added to the output of a test that fails.
//
// [Conn] sends single requests of chosen versions over one connection and [Sniffer] tells which versions a client
// library chose; [Batch] makes record batches byte by byte. None of them shares code with the broker.
//
// Nothing here sleeps: what takes time is awaited, and every wait has a limit.
package harness
