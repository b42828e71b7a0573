package streamstore

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxNameBytes is the longest stream name, in bytes.
const MaxNameBytes = 1024

// ValidateName checks a stream name: UTF-8 segments separated by '/', no empty
// segment, no "." or "..", no control characters, 1 to MaxNameBytes bytes. The
// error wraps ErrInvalidName and says which rule is broken.
func ValidateName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: it is empty", ErrInvalidName)
	case len(name) > MaxNameBytes:
		return fmt.Errorf("%w: it has %d bytes, the limit is %d", ErrInvalidName, len(name), MaxNameBytes)
	case !utf8.ValidString(name):
		return fmt.Errorf("%w: %q is not UTF-8", ErrInvalidName, name)
	}
	if i := strings.IndexFunc(name, unicode.IsControl); i >= 0 {
		return fmt.Errorf("%w: %q has a control character at byte %d", ErrInvalidName, name, i)
	}
	for segment := range strings.SplitSeq(name, "/") {
		switch segment {
		case "":
			return fmt.Errorf("%w: %q has an empty segment between slashes", ErrInvalidName, name)
		case ".", "..":
			return fmt.Errorf("%w: %q has a segment %q", ErrInvalidName, name, segment)
		}
	}
	return nil
}
