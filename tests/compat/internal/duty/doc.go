// Package duty is what the client programs of the compatibility run that are written in Go have in common: the command
// line, the records, and the duties themselves, written once against the interface Client.
//
// Every client program, in whatever language, is run as
//
//	program --brokers host:port --duty NAME --topic-prefix PREFIX
//
// It uses the topic and the group PREFIX + NAME, writes one line of JSON to standard output,
//
//	{"duty": "gzip", "result": "ok", "detail": ""}
//
// and ends with code 0 if the result is "ok" or "n/a" (the client cannot do it, and detail says why) and with code 1 if
// it is "fail". The pseudo duty "version" answers with the version of the client as detail.
package duty
