// Package client is the Go client for Brooklet's named streams: one ordered log per key, such as sessions/alice. It speaks
// the Kafka protocol through franz-go, and takes that library's options for addresses, TLS, SASL and dialing:
//
//	c, err := client.New(kgo.SeedBrokers("127.0.0.1:9092"))
//	if err != nil { … }
//	defer c.Close()
//	_, err = c.Append(ctx, "sessions/alice", client.Record{Value: []byte("signed in")})
//	for r, err := range c.Follow(ctx, "sessions/alice", client.Start()) { … }
//
// A stream comes to exist with its first record, so nothing has to be made beforehand, and whoever reads or follows a
// stream that does not exist yet sees an empty one.
//
// # Writing
//
// Append returns when the record is durable in the sense of the broker's --durability. Appends to one stream take effect in
// the order in which they were begun, each exactly once: whatever connections do, a retry is recognised by the broker
// (KIP-98). Appends of many goroutines share requests, also those to different streams; AppendAsync does not even wait.
// An append may demand the offset that it gets ([NextIs]), and may close its stream.
//
// # Reading
//
// Read ends where the stream ended when it began; Follow goes on for ever; FollowPrefix follows all streams under a prefix,
// those included that are made later, and keeps a [Cursor] that can be stored and resumed from. Followers reconnect by
// themselves and neither miss nor repeat a record. Each has a connection of its own, so to follow many streams use one
// FollowPrefix rather than many Follows. Records come from iterators; an error ends them, and so does breaking the loop,
// which leaves nothing running.
//
// # Kafka
//
// The same streams can be used with any Kafka client: a stream is a topic, named like it, with the one partition 0. What
// this package adds to that is described in docs/kafka-extensions.md; it needs a broker that announces it, and says so if
// it finds another.
package client
