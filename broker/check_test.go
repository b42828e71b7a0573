package broker

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"testing"
)

// The checks that tests of this package share. Each ends the test with what was found, what was wanted, and what the
// test says about it: a format and its arguments, or nothing.

func fail(t testing.TB, found string, about []any) {
	t.Helper()
	if len(about) > 0 {
		found += ": " + fmt.Sprintf(fmt.Sprint(about[0]), about[1:]...)
	}
	t.Fatal(found)
}

func wantEqual(t testing.TB, want, got any, about ...any) {
	t.Helper()
	if !reflect.DeepEqual(want, got) {
		fail(t, fmt.Sprintf("got %#v, want %#v", got, want), about)
	}
}

type integer interface {
	~int | ~int16 | ~int32 | ~int64 | ~float64
}

func wantInt[W, G integer](t testing.TB, want W, got G, about ...any) {
	t.Helper()
	if int64(got) != int64(want) {
		fail(t, fmt.Sprintf("got %v, want %v", got, want), about)
	}
}

func wantZero[T comparable](t testing.TB, got T, about ...any) {
	t.Helper()
	var zero T
	if got != zero {
		fail(t, fmt.Sprintf("got %v, want %v", got, zero), about)
	}
}

func wantNotZero[T comparable](t testing.TB, got T, about ...any) {
	t.Helper()
	var zero T
	if got == zero {
		fail(t, fmt.Sprintf("got %v", got), about)
	}
}

func wantLess[T cmp.Ordered](t testing.TB, got, than T, about ...any) {
	t.Helper()
	if got >= than {
		fail(t, fmt.Sprintf("got %v, want less than %v", got, than), about)
	}
}

func wantAtMost[T cmp.Ordered](t testing.TB, got, limit T, about ...any) {
	t.Helper()
	if got > limit {
		fail(t, fmt.Sprintf("got %v, want at most %v", got, limit), about)
	}
}

func wantNoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErrorIs(t testing.TB, err, target error, about ...any) {
	t.Helper()
	if !errors.Is(err, target) {
		fail(t, fmt.Sprintf("got error %v, want %v", err, target), about)
	}
}

// wantLen checks the length of a slice, map, string or channel.
func wantLen(t testing.TB, got any, want int, about ...any) {
	t.Helper()
	if n := reflect.ValueOf(got).Len(); n != want {
		fail(t, fmt.Sprintf("got %d elements, want %d: %v", n, want, got), about)
	}
}

func isNil(v any) bool { return v == nil || reflect.ValueOf(v).IsNil() }

func wantNil(t testing.TB, got any, about ...any) {
	t.Helper()
	if !isNil(got) {
		fail(t, fmt.Sprintf("got %v, want nil", got), about)
	}
}

func wantNotNil(t testing.TB, got any, about ...any) {
	t.Helper()
	if isNil(got) {
		fail(t, "got nil", about)
	}
}
