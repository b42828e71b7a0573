package broker

import (
	"context"
	"time"

	"github.com/brookletmq/brooklet/kafkaproto"
)

const (
	// defaultAdminTimeout is how long a request for a change waits if it gives no time.
	defaultAdminTimeout = 30 * time.Second
	// maxAdminTimeout bounds what a request may ask for, because requests behind it on the connection wait too.
	maxAdminTimeout = 60 * time.Second
)

// adminContext bounds ctx by the timeout that a request for a change carries. When it ends the change still goes on; the
// client is told REQUEST_TIMED_OUT and finds the change made when it asks again.
func adminContext(ctx context.Context, timeoutMillis int32) (context.Context, context.CancelFunc) {
	timeout := time.Duration(timeoutMillis) * time.Millisecond
	if timeout <= 0 {
		timeout = defaultAdminTimeout
	}
	return context.WithTimeout(ctx, min(timeout, maxAdminTimeout))
}

// distinct returns the first item of each key, in order, and the keys that occur more than once. Requests must name a
// topic or resource once; like Kafka, the broker answers one that is named more often once, with an error.
func distinct[T any, K comparable](items []T, key func(*T) K) (firsts []*T, repeated map[K]bool) {
	n := make(map[K]int, len(items))
	for i := range items {
		n[key(&items[i])]++
	}
	repeated = map[K]bool{}
	for i := range items {
		k := key(&items[i])
		if repeated[k] {
			continue
		}
		if n[k] > 1 {
			repeated[k] = true
		}
		firsts = append(firsts, &items[i])
	}
	return firsts, repeated
}

// errRepeated answers for a topic or resource that a request names more than once.
func errRepeated(name string) *kafkaproto.Error {
	return kafkaproto.ErrInvalidRequest.WithMessage("%q is named more than once in one request", name)
}
