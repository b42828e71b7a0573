package httpapi

import (
	"bytes"
	"context"
	"errors"
	"math"
	"net/http"
	"net/url"
	"strings"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/streamstore"
)

// A fork is a copy of its source up to an offset, at the same offsets. It shares nothing with it, so it costs what its
// records cost, and reading it costs no more than reading any stream. The batches are copied without their producers'
// numbers: who writes to a fork begins anew there.

// forkRequest is what the headers of a PUT say of a fork.
type forkRequest struct {
	source    string // name
	hasOffset bool
	offset    int64
	// sub is how much is taken past the offset: messages of a JSON stream, else bytes of the value there.
	sub int64
}

// readFork reads the headers of a fork, nil if there are none.
func readFork(h http.Header) (*forkRequest, error) {
	given := func(name string) bool { _, ok := h[http.CanonicalHeaderKey(name)]; return ok }
	if !given(headerForkedFrom) {
		if given(headerForkOffset) || given(headerForkSubOffset) {
			return nil, badRequest.new("%s and %s belong to a fork: say with %s of what", headerForkOffset, headerForkSubOffset, headerForkedFrom)
		}
		return nil, nil
	}
	path, err := url.PathUnescape(h.Get(headerForkedFrom))
	if err != nil || path == "" {
		return nil, badRequest.new("%s is %q: write the path of the source's address", headerForkedFrom, shorten(h.Get(headerForkedFrom)))
	}
	// The path of an address begins with that of this server; clients that were given it as their root leave it out.
	name, ok := strings.CutPrefix(path, durablePath)
	if !ok {
		name = strings.TrimPrefix(path, "/")
	}
	f := &forkRequest{source: name}
	if given(headerForkOffset) {
		f.hasOffset = true
		if f.offset, err = parseDurable(h.Get(headerForkOffset)); err != nil {
			return nil, asProblem(err).with("header", headerForkOffset)
		}
	}
	if given(headerForkSubOffset) {
		text := h.Get(headerForkSubOffset)
		if f.sub, err = plainNumber(text, math.MaxInt64); err != nil {
			return nil, badRequest.new("%s is %q: %v", headerForkSubOffset, shorten(text), err)
		}
		if f.sub > 0 && !f.hasOffset {
			return nil, badRequest.new("%s says how much is taken past %s, which is missing", headerForkSubOffset, headerForkOffset)
		}
	}
	return f, nil
}

// forkSource is the part of a stream that a fork takes.
type forkSource struct {
	*durableStream
	request *forkRequest
	// start and end are the first offset and the one after the last whole record.
	start, end int64
	// piece, if not nil, is the beginning of the record at end.
	piece *kafkaproto.Record
}

func (f *forkSource) origin() origin {
	o := origin{source: f.id, name: f.name, offset: f.info.HighWatermark, sub: f.request.sub}
	if f.request.hasOffset {
		o.offset = f.request.offset
	}
	return o
}

// forkSource finds what a fork takes, nil if there is no fork.
func (s *Server) forkSource(rq *forkRequest) (*forkSource, error) {
	if rq == nil {
		return nil, nil
	}
	d, err := s.durableStream(rq.source)
	switch {
	case err != nil:
		return nil, err
	case d.gone:
		return nil, &problem{kind: streamExists, detail: "the source of the fork was deleted"}
	case d.id == 0:
		return nil, errNoStream(rq.source)
	}
	f := &forkSource{durableStream: d, request: rq, start: d.info.Start, end: d.info.HighWatermark}
	if !rq.hasOffset {
		return f, nil
	}
	f.end = rq.offset
	if f.end < f.start || f.end > d.info.HighWatermark {
		return nil, badRequest.new("%s is not within the source, which has %s to %s", headerForkOffset, formatDurable(f.start), formatDurable(d.info.HighWatermark))
	}
	if rq.sub > 0 {
		err = s.pastOffset(f)
	}
	return f, err
}

// pastOffset takes what the request wants past its offset. It must be within the append there.
func (s *Server) pastOffset(f *forkSource) error {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	if f.isJSON() {
		end := f.end
		_, err := s.eachBatch(ctx, f.id, f.end, f.info.HighWatermark, 1, func(b kafkaproto.RecordBatch) bool {
			end = b.LastOffset() + 1
			return false
		})
		if err != nil {
			return err
		}
		if f.request.sub > end-f.end {
			return badRequest.new("%s is %d, but the append at %s has %d messages from there on", headerForkSubOffset, f.request.sub, headerForkOffset, end-f.end)
		}
		f.end += f.request.sub
		return nil
	}
	size := int64(0)
	_, err := s.eachRecord(ctx, f.id, f.end, f.info.HighWatermark, 1, func(r *kafkaproto.RecordView) verdict {
		if size = int64(len(r.Value)); f.request.sub <= size {
			f.piece = pieceOf(r, int(f.request.sub))
		}
		return takenAll
	})
	if err == nil && f.piece == nil {
		return badRequest.new("%s is %d, but the append at %s has %d bytes", headerForkSubOffset, f.request.sub, headerForkOffset, size)
	}
	return err
}

// pieceOf is a copy of a record with the first bytes of its value.
func pieceOf(r *kafkaproto.RecordView, size int) *kafkaproto.Record {
	piece := &kafkaproto.Record{Timestamp: r.Timestamp, Key: bytes.Clone(r.Key), Value: bytes.Clone(r.Value[:size])}
	for name, value := range r.Headers() {
		piece.Headers = append(piece.Headers, kafkaproto.Header{Key: string(name), Value: bytes.Clone(value)})
	}
	return piece
}

// copyBytes is what a copy reads at a time.
const copyBytes = 1 << 20

// noProducer marks a batch that is no part of a producer's sequence.
var noProducer = kafkaproto.ProducerState{ID: -1, Epoch: -1, Sequence: -1}

// copyFork appends what the fork takes to a stream that begins at its start.
func (s *Server) copyFork(ctx context.Context, id streamstore.StreamID, from *forkSource) error {
	held, err := s.hold(ctx, replyCopies*copyBytes)
	if err != nil {
		return err
	}
	defer held.release()
	next := from.start
	put := func(batch kafkaproto.RecordBatch) error {
		batch.SetProducer(noProducer)
		done, err := s.store.Append(ctx, streamstore.AppendRequest{Stream: id, Batch: batch, Expected: next})
		next = done.LastOffset + 1
		return err
	}
	for next < from.end {
		at := next
		var failed error
		_, err := s.eachBatch(ctx, from.id, next, from.end, copyBytes, func(b kafkaproto.RecordBatch) bool {
			failed = put(bytes.Clone(b))
			return failed == nil && next-at < from.end-at
		})
		if err := errors.Join(err, failed); err != nil {
			return copyProblem(err)
		}
		if next == at {
			return copyProblem(streamstore.ErrOffsetOutOfRange)
		}
	}
	if from.piece == nil {
		return nil
	}
	b := takeBuilder(nil)
	defer putBuilder(b)
	if err := b.Append(*from.piece); err != nil {
		return err
	}
	batch, err := b.Build()
	if err != nil {
		return err
	}
	return put(batch)
}

// copyProblem is the error of a copy that cannot be complete.
func copyProblem(err error) error {
	if errors.Is(err, streamstore.ErrOffsetOutOfRange) {
		return busy.new("records of the source were trimmed while it was copied; try again").withHeader("Retry-After", retryAfter)
	}
	return err
}

// durableDelete answers DELETE. A stream that has forks keeps its name.
func (s *Server) durableDelete(x *exchange) error {
	d, err := s.durableExisting(durableName(x.r))
	if err != nil {
		return err
	}
	if err := d.own("delete"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), s.opts.AppendTimeout)
	defer cancel()
	forks, err := s.hasForks(d.id)
	if err != nil {
		return err
	}
	txn := streamstore.NewTxn()
	txn.Delete(d.id)
	if forks {
		txn.Set([]byte(rowGone+d.name), idRow("", d.id))
		txn.Set(idRow(rowGoneID, d.id), []byte(d.name))
	} else if err := s.unsetRows(txn, d.id); err != nil {
		return err
	}
	if _, err := s.store.Commit(ctx, txn); err != nil {
		return err
	}
	s.maySweep()
	x.WriteHeader(http.StatusNoContent)
	return nil
}
