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
// the bytes received; a peer must send its requests and take its responses at a
// least rate. A peer that breaks a rule loses its connection and leaves one log line.
//
// All connections share [Options.MaxRequestMemory], which is divided among
//
//	frames     of requests being received, and of Produce until they are answered
//	decoding   for as long as it takes
//	decoded    requests other than Produce until they are answered
//	responses  until they are written, but for those that are a [Releaser]
//
// so that none of these waits for another, and each into a part for what is small and
// one for what is large. Within a part nobody waits behind one that waits, see budget.
// A connection that does not get memory is not read, and is closed when that takes too
// long.
//
// Of one connection at most four requests other than Produce are in flight, and only
// one if it is large or its response is likely to be.
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
