// Package httpapi is the HTTP door of the broker: streams as resources under /v1/streams, for clients that speak no Kafka.
// docs/http.md is its manual, docs/openapi.yaml its contract, which the tests hold to what is served.
//
//	Server.ServeHTTP ──▶ routes.go ──▶ streams.go   PUT, PATCH, DELETE, HEAD, describe ──▶ Store.Commit
//	   page.go: the live page      │
//	   exchange.go: deadlines,     ├─▶ list.go      streams by prefix ──▶ Store.List
//	   problems, query             ├─▶ append.go    POST ──▶ Server.appendBatch ──▶ Store.Append
//	   body.go: request bodies     ├─▶ read.go      GET, long polls ──▶ reader.go ──▶ Store.Read
//	   cors.go, compress.go        ├─▶ follow.go    events of one stream ──▶ reader.go, wait.go
//	                               ├─▶ prefix.go    events of many streams ──▶ reader.go, Store.WatchPrefix
//	                               └─▶ durable.go   the protocol Durable Streams at /ds/, on the same parts
//
// # For other doors over HTTP
//
// An address is a row of routes (routes.go) and of docs/openapi.yaml. What its handler needs, none of it bound to /v1:
//
//   - names.go: Server.target finds the stream of a name and the rules of its topic.
//   - append.go: Server.appendBatch checks a batch and appends it under conditions (expected offset, producer, close),
//     making the stream if need be; takeBuilder makes batches of records.
//   - reader.go: Server.eachRecord reads records, Server.eachBatch batches; Server.locate (read.go) turns a position
//     into an offset.
//   - wait.go: Server.watch waits for news of a stream, which need not exist yet; Server.await is a whole long poll.
//   - record.go: records as JSON, both ways. events.go: event streams.
//   - exchange.go: exchange.Write and its deadlines, exchange.fail for errors, problem.go for what they are called.
//
// # Rules
//
//   - Every write to a client has a deadline of its own, set by exchange.Write; a reply as a whole has none.
//   - Whatever holds records or bodies in memory holds as much of Server.memory (memory.go). Who holds some must not wait
//     for more.
//   - A reader that waits holds a connection, its goroutines and a place in the stream's list of watchers; no buffer.
//   - Ids and names of events are this package's own; what users wrote is only ever data.
//   - Cursors and ids of events outlive the process: what they look like is documented beside the code (cursor.go,
//     follow.go), and old ones must stay readable.
package httpapi
