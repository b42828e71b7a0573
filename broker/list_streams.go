package broker

import (
	"strings"

	"github.com/brookletmq/brooklet/streamstore"
)

// listPage is how many streams are read from the store at a time.
const listPage = 1000

// listStreams calls fn with the named streams whose names begin with prefix, in order of names, from the name from on
// (included), until fn returns false. The streams of topics and the broker's own are left out.
func listStreams(store *streamstore.Store, prefix, from string, fn func(*streamstore.StreamInfo) bool) error {
	page, err := store.List(prefix, beforeName(from), listPage)
	for ; len(page) > 0 && err == nil; page, err = store.List(prefix, from, listPage) {
		for i := range page {
			info := &page[i]
			from = info.Name
			if behind, reserved := behindReserved(from); reserved {
				from = behind // there may be very many of them
				break
			}
			if isStreamName(from) && checkStreamName(from) == nil && !fn(info) {
				return nil
			}
		}
	}
	return err
}

// beforeName is a string that is smaller than name and larger than all smaller names. A client may ask for what lies
// behind a name by adding a zero byte.
func beforeName(name string) string {
	if name == "" {
		return ""
	}
	last := name[len(name)-1]
	if last == 0 {
		return name[:len(name)-1]
	}
	return name[:len(name)-1] + string([]byte{last - 1, 0xff})
}

// behindReserved tells whether a name is one of those that named streams cannot have, and returns a string behind all
// names that begin like it.
func behindReserved(name string) (behind string, reserved bool) {
	switch {
	case strings.HasPrefix(name, topicStreams):
		return topicStreams + "\xff", true
	case strings.HasPrefix(name, "_"):
		return "_\xff", true
	}
	return "", false
}
