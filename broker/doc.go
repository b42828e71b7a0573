// Package broker decides what requests mean: it keeps the catalogue of topics and named streams and answers the Kafka
// APIs, one file per API key.
//
//	kafkaproto.Server ──Request──▶ Broker.Handle ──▶ NN_name.go ──▶ catalogue (names, ids, configs)
//	                                                        ├─────▶ groups.Coordinator (members, offsets)
//	                                                        └─────▶ streamstore.Store (records, rows)
//
// A handler has three parts, kept as separate functions so that each can be read and tested alone: checking the
// request, deciding (against a catalogue snapshot or the store), and filling the reply.
//
// # Words
//
//   - A topic is a row in the store's key-value space plus one stream per partition, topics/<topic>/<partition>.
//   - A named stream is any other stream; a Kafka topic name that contains a slash addresses it as a topic with the
//     one partition 0.
//   - The catalogue is the in-memory view of all topics. Readers use an immutable snapshot and take no lock.
//
// # Rows
//
// Everything the broker must remember is a row of the store's key-value space, changed in the same transaction as the
// streams it belongs to (see rows.go, producer_ids.go and groups/rows.go for the encodings):
//
//	topic/<name>     one topic: id, creation time, partition count, config overrides
//	cluster/id       the cluster id
//	producer/next    the first producer id that no block has claimed yet
//	group/<group>    one consumer group
//	group-offset/<group>/<topic>/<partition>    one committed offset
package broker
