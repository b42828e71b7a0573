package groups

import "context"

// Pending is the answer to a request that may have to wait for other members or for the store. The coordinator gives
// every one its answer in the end; a caller that stops waiting changes nothing.
type Pending[T any] struct {
	done  chan struct{}
	value T
}

func newPending[T any]() *Pending[T] { return &Pending[T]{done: make(chan struct{})} }

// answered is an answer that is there already.
func answered[T any](value T) *Pending[T] {
	p := newPending[T]()
	p.answer(value)
	return p
}

// answer must be called once.
func (p *Pending[T]) answer(value T) {
	p.value = value
	close(p.done)
}

// Wait returns the answer, or ctx.Err() if ctx ends first.
func (p *Pending[T]) Wait(ctx context.Context) (T, error) {
	select {
	case <-p.done:
		return p.value, nil
	default:
	}
	select {
	case <-p.done:
		return p.value, nil
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}
