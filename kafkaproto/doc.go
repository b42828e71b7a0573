// Package kafkaproto turns bytes into typed Kafka requests and typed responses
// into bytes. It owns the listener, the connections, framing, the table of API
// versions, the record batch codec and the error codes. It keeps no broker state
// and stores nothing: what a request means is the [Handler]'s business.
//
// # A request's way
//
//	socket -> frame -> header -> kmsg body -> Handler.Handle -> queue -> Reply -> socket
//	'-------- reading goroutine, one per connection --------'   '- writing goroutine -'
//
// The reading goroutine takes one frame at a time, decodes it and calls Handle, so
// requests of one connection start in the order they were sent. Handle hands back
// a [Reply]; the writing goroutine calls the replies one after the other, so
// answers leave in request order whatever finishes first, which clients rely on.
// A long poll therefore holds up the answers behind it, as it does in Kafka.
//
// # Memory
//
// Nothing that a peer announces is believed before it has arrived. Every length
// is compared with the bytes that are really there; a frame's buffer grows with
// the bytes received; frames and the structs decoded from them are charged to
// budgets shared by all connections ([Options.MaxRequestMemory]) before they are
// allocated. A peer that breaks a rule loses its connection and leaves one log line.
//
// Record batches are not copied: the Records fields of a Produce request are
// slices of the frame, which is never used again. Strings are copies. Other byte
// fields and unknown tags are slices of the frame as well.
//
// # Record batches
//
// [RecordBatch] is a view over the bytes of one RecordBatch v2. [ValidateBatch]
// makes the checks that Kafka makes on Produce and that need no decompression.
// [RecordIterator] walks the records, decompressing as a stream and within
// [IterLimits]. [Builder] makes batches.
package kafkaproto
