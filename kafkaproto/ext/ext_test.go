package ext

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Every value survives its encoding, a reader ignores what a later release appends, and a value that is cut anywhere is
// ErrShort.
func TestValues(t *testing.T) {
	details := Details{Start: 3, Next: 1 << 40, Created: time.UnixMilli(1234567890123), LastWrite: time.UnixMilli(1234567890124),
		Retention: time.Hour, RetentionBytes: -1, TTL: -1, Closed: true, ContentType: "application/json"}
	follow := Follow{Prefix: "sessions/größe/", FromEnd: true}
	for _, test := range []struct {
		value   any
		encoded []byte
		decode  func([]byte) (any, error)
	}{
		{details, details.Encode(), func(b []byte) (any, error) { return DecodeDetails(b) }},
		{Details{Created: time.UnixMilli(0), LastWrite: time.UnixMilli(0)}, (&Details{Created: time.UnixMilli(0), LastWrite: time.UnixMilli(0)}).Encode(),
			func(b []byte) (any, error) { return DecodeDetails(b) }},
		{follow, follow.Encode(), func(b []byte) (any, error) { return DecodeFollow(b) }},
		{Follow{}, (&Follow{}).Encode(), func(b []byte) (any, error) { return DecodeFollow(b) }},
	} {
		for _, tail := range []string{"", "what a later release appends"} {
			got, err := test.decode(append(test.encoded[:len(test.encoded):len(test.encoded)], tail...))
			if err != nil || !reflect.DeepEqual(got, test.value) {
				t.Errorf("%+v is read as %+v, %v", test.value, got, err)
			}
		}
		for n := range test.encoded {
			if _, err := test.decode(test.encoded[:n]); !errors.Is(err, ErrShort) {
				t.Errorf("%+v cut to %d of %d bytes: error %v", test.value, n, len(test.encoded), err)
			}
		}
	}
}

func TestTags(t *testing.T) {
	var tags kmsg.Tags
	if _, ok := Tag(&tags, TagClose); ok {
		t.Error("a tag is found where there is none")
	}
	if v := AnnouncedVersion(&tags); v != 0 {
		t.Errorf("version %d is announced by nothing", v)
	}
	SetVersion(&tags)
	SetInt64(&tags, TagExpectedOffset, -5)
	tags.Set(TagClose, nil)
	if v := AnnouncedVersion(&tags); v != Version {
		t.Errorf("version %d is announced, want %d", v, Version)
	}
	if v, ok, err := Int64(&tags, TagExpectedOffset); v != -5 || !ok || err != nil {
		t.Errorf("the expected offset is %d, %t, %v", v, ok, err)
	}
	if _, ok := Tag(&tags, TagClose); !ok {
		t.Error("the tag without a value is not found")
	}
	tags.Set(TagExpectedOffset, []byte{1})
	if _, ok, err := Int64(&tags, TagExpectedOffset); ok || !errors.Is(err, ErrShort) {
		t.Errorf("an offset of one byte: %t, %v", ok, err)
	}
}
