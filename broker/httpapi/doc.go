// Package httpapi is the HTTP door of the broker: streams as resources under /v1/streams, for clients that speak no Kafka.
// docs/http.md is its manual, docs/openapi.yaml its contract, which a test holds to the routes.
//
//	Server.ServeHTTP ──▶ routes.go ──▶ streams.go   PUT, PATCH, DELETE, HEAD, describe
//	   exchange.go: deadlines,     ├─▶ list.go      streams by prefix
//	   problems, JSON              ├─▶ append.go    POST ────────────────▶ streamstore.Append
//	   cors.go, compress.go        └─▶ read.go      GET, long poll ──▶ reader.go ──▶ streamstore.Read
//
// The parts that know nothing of requests are for other doors over HTTP as well: Server.target finds a stream and its
// rules, Server.appendBatch checks and appends a batch, Server.eachRecord and Server.eachBatch read, Server.locate turns a
// position into an offset.
package httpapi
