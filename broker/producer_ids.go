package broker

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"sync"

	"github.com/brookletmq/brooklet/streamstore"
)

// producerIDBlock is how many producer ids are claimed at once, as in Kafka (KIP-730). A restart loses the rest of a
// block; at one restart a second the ids last for 290 million years.
const producerIDBlock = 1000

// producerIDs hands out producer ids, each once for the life of the store: the row producer/next, an int64 in big
// endian, is moved past a block before the first id of the block is handed out.
type producerIDs struct {
	store *streamstore.Store
	m     *metrics

	mu struct {
		sync.Mutex
		next, end int64 // ids next..end-1 are claimed and free
		// claim is closed when the claim of a new block that is under way is done. Nil when there is none.
		claim chan struct{}
	}
}

// allocate returns a new producer id. It waits for the store when a block is used up; callers that wait together share
// one claim.
func (p *producerIDs) allocate(ctx context.Context) (int64, error) {
	for {
		id, ok, claim := p.take()
		if ok {
			p.m.producerIDs.Inc()
			return id, nil
		}
		if claim == nil {
			if err := p.claimBlock(ctx); err != nil {
				return 0, err
			}
			continue
		}
		select {
		case <-claim:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// take returns an id if there is one. Otherwise it returns the claim to wait for, or nil if the caller must make it.
func (p *producerIDs) take() (id int64, ok bool, claim <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.next < p.mu.end {
		id = p.mu.next
		p.mu.next++
		return id, true, nil
	}
	if p.mu.claim != nil {
		return 0, false, p.mu.claim
	}
	p.mu.claim = make(chan struct{})
	return 0, false, nil
}

// claimBlock claims the next block in the store. If ctx ends meanwhile the block may be claimed and lost.
func (p *producerIDs) claimBlock(ctx context.Context) error {
	first, err := p.writeClaim(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.mu.claim)
	p.mu.claim = nil
	if err != nil {
		return err
	}
	p.mu.next, p.mu.end = first, first+producerIDBlock
	p.m.producerIDsBlocks.Inc()
	return nil
}

func (p *producerIDs) writeClaim(ctx context.Context) (first int64, err error) {
	value, ok, err := p.store.Get([]byte(nextProducerID))
	if err != nil {
		return 0, err
	}
	if ok {
		if len(value) != 8 {
			return 0, fmt.Errorf("%w: next producer id has %d bytes, not 8", errBadRow, len(value))
		}
		first = int64(binary.BigEndian.Uint64(value))
	}
	if first < 0 || first > math.MaxInt64-producerIDBlock {
		return 0, fmt.Errorf("%w: next producer id is %d", errBadRow, first)
	}
	txn := streamstore.NewTxn()
	txn.Set([]byte(nextProducerID), binary.BigEndian.AppendUint64(nil, uint64(first+producerIDBlock)))
	_, err = p.store.Commit(ctx, txn)
	return first, err
}
