package faults

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// history is what was done to one stream: appends of single records, reads of single offsets, and questions for the
// high watermark.
type history struct {
	mu  sync.Mutex
	ops []operation
}

// operation is one of them. Times are nanoseconds since the round began.
type operation struct {
	client       int
	kind         opKind
	value        string // appended, or read; "" if the read found nothing
	offset       int64  // of the record; the high watermark; of a conflict the next offset
	condition    bool   // of an append: the record must get the offset demanded
	demanded     int64
	unknown      bool // of an append: it may have taken effect, or may still
	call, answer int64
}

type opKind int

const (
	opAppend opKind = iota
	opRead
	opEnd      // asks for the high watermark
	opConflict // an append that was refused because of its condition
)

func (o operation) String() string {
	switch {
	case o.kind == opConflict:
		return fmt.Sprintf("no append %s at %d, next is %d", o.value, o.demanded, o.offset)
	case o.kind == opAppend && o.unknown:
		return fmt.Sprintf("append %s, outcome unknown", o.value)
	case o.kind == opAppend:
		return fmt.Sprintf("append %s at %d", o.value, o.offset)
	case o.kind == opRead:
		return fmt.Sprintf("read %q at %d", o.value, o.offset)
	}
	return fmt.Sprintf("end is %d", o.offset)
}

func (h *history) add(o operation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, o)
}

// log is the state of the model: the values of a stream from offset 0 on. It is never changed in place.
type log []string

// logModel is what a stream is. An append gets the next offset, which is the number of those before it; one with a
// condition does so if it demanded that offset, and is refused if it demanded another one. A read finds what is there, or
// nothing at the end.
var logModel = porcupine.Model{
	Init: func() any { return log(nil) },
	Step: func(state, input, _ any) (bool, any) {
		l, o := state.(log), input.(operation)
		n := int64(len(l))
		switch o.kind {
		case opAppend:
			return o.offset == n && (!o.condition || o.demanded == n), append(l[:n:n], o.value)
		case opConflict:
			return o.offset == n && o.demanded != n, l
		case opRead:
			if o.value == "" {
				return o.offset >= n, l
			}
			return o.offset < n && l[o.offset] == o.value, l
		default:
			return o.offset == n, l
		}
	},
	Equal:             func(a, b any) bool { return slices.Equal(a.(log), b.(log)) },
	Hash:              func(state any) uint64 { return uint64(len(state.(log))) },
	DescribeOperation: func(input, _ any) string { return input.(operation).String() },
	DescribeState:     func(state any) string { return fmt.Sprint(len(state.(log)), " records") },
}

// checkTimeLimit bounds the search for an order. What takes longer counts as a failure: then there are too many
// operations at a time.
const checkTimeLimit = 60 * time.Second

// resolve makes the outcomes known that were not, with what the stream has in the end. Records are never taken back and
// values are unique, so an append took effect if and only if its value is there; it may have done so long after the
// client gave up. An append that had no effect is no operation.
func resolve(ops []operation, final []string) []operation {
	where := make(map[string]int64)
	for offset, value := range final {
		where[value] = int64(offset)
	}
	var resolved []operation
	for _, o := range ops {
		if o.kind == opAppend && o.unknown {
			offset, took := where[o.value]
			if !took {
				continue
			}
			o.offset, o.answer = offset, math.MaxInt64
		}
		resolved = append(resolved, o)
	}
	return resolved
}

// linearizable reports whether the operations can have happened one at a time, each between its call and its answer, and
// left what the stream has in the end.
func linearizable(ops []operation, final []string) (ok bool, what string) {
	var history []porcupine.Operation
	for _, o := range resolve(ops, final) {
		history = append(history, porcupine.Operation{ClientId: o.client, Input: o, Call: o.call, Return: o.answer})
	}
	result, info := porcupine.CheckOperationsVerbose(logModel, history, checkTimeLimit)
	if result == porcupine.Ok {
		return true, ""
	}
	longest := 0
	for _, partition := range info.PartialLinearizationsOperations() {
		for _, order := range partition {
			longest = max(longest, len(order))
		}
	}
	return false, fmt.Sprintf("%s; %d of %d operations can be put in order", result, longest, len(history))
}

// The checker must find what is wrong, or it proves nothing.
func TestLinearizable(t *testing.T) {
	t.Parallel()
	appended := func(value string, offset, call, answer int64) operation {
		return operation{kind: opAppend, value: value, offset: offset, call: call, answer: answer}
	}
	unknown := func(value string, call, answer int64) operation {
		return operation{kind: opAppend, value: value, unknown: true, call: call, answer: answer}
	}
	read := func(value string, offset, call, answer int64) operation {
		return operation{kind: opRead, value: value, offset: offset, call: call, answer: answer}
	}
	end := func(offset, call, answer int64) operation {
		return operation{kind: opEnd, offset: offset, call: call, answer: answer}
	}
	conditional := func(o operation, demanded int64) operation {
		o.condition, o.demanded = true, demanded
		return o
	}
	conflict := func(demanded, next, call, answer int64) operation {
		return operation{kind: opConflict, value: "c", condition: true, demanded: demanded, offset: next, call: call, answer: answer}
	}
	for _, test := range []struct {
		name  string
		ops   []operation
		final []string
		want  bool
	}{
		{"one after the other", []operation{appended("a", 0, 1, 2), appended("b", 1, 3, 4), read("a", 0, 5, 6), end(2, 7, 8)}, []string{"a", "b"}, true},
		{"at the same time, in the other order", []operation{appended("b", 1, 1, 9), appended("a", 0, 2, 8)}, []string{"a", "b"}, true},
		{"order turned round", []operation{appended("b", 1, 1, 2), appended("a", 0, 3, 4)}, []string{"a", "b"}, false},
		{"one offset twice", []operation{appended("a", 0, 1, 2), appended("b", 0, 1, 2)}, []string{"b"}, false},
		{"a hole", []operation{appended("a", 0, 1, 2), appended("b", 2, 3, 4)}, []string{"a", "", "b"}, false},
		{"end goes back", []operation{appended("a", 0, 1, 2), end(1, 3, 4), end(0, 5, 6)}, []string{"a"}, false},
		{"end before the acknowledgement", []operation{appended("a", 0, 1, 9), end(1, 3, 4), end(1, 5, 6)}, []string{"a"}, true},
		{"acknowledged and not seen", []operation{appended("a", 0, 1, 2), read("", 0, 3, 4)}, []string{"a"}, false},
		{"another value", []operation{appended("a", 0, 1, 2), read("x", 0, 3, 4)}, []string{"a"}, false},
		{"took effect late", []operation{unknown("a", 1, 2), read("", 0, 3, 4), appended("b", 0, 5, 6), read("a", 1, 7, 8)}, []string{"b", "a"}, true},
		{"had no effect", []operation{unknown("a", 1, 2), appended("b", 0, 5, 6)}, []string{"b"}, true},
		{"compare and append", []operation{conditional(appended("a", 0, 1, 4), 0), conflict(0, 1, 2, 5)}, []string{"a"}, true},
		{"both were let through", []operation{conditional(appended("a", 0, 1, 4), 0), conditional(appended("b", 1, 2, 5), 0)}, []string{"a", "b"}, false},
		{"took effect against its condition", []operation{appended("a", 0, 1, 2), conditional(unknown("b", 3, 4), 0)}, []string{"a", "b"}, false},
		{"conflict for nothing", []operation{conflict(0, 0, 1, 2)}, nil, false},
		{"conflict with the future", []operation{conflict(0, 1, 1, 2), appended("a", 0, 3, 4)}, []string{"a"}, false},
		{"conflict with what came to nothing", []operation{conflict(0, 1, 2, 3), unknown("a", 1, 4), appended("b", 0, 5, 6)}, []string{"b"}, false},
		{"was seen and is gone", []operation{unknown("a", 1, 2), read("a", 0, 3, 4), appended("b", 0, 5, 6)}, []string{"b"}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if ok, what := linearizable(test.ops, test.final); ok != test.want {
				t.Errorf("linearizable: %v (%s), want %v", ok, what, test.want)
			}
		})
	}
}
