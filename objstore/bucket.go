package objstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Errors of buckets. All are matched with errors.Is; what a provider said is in
// the message, and often further down the chain.
var (
	// ErrExists says that an object of the name exists; see Bucket.Create.
	ErrExists = errors.New("object exists")
	// ErrAmbiguous comes together with ErrExists: an earlier attempt of this very
	// call failed without telling whether it took effect, so the object that
	// exists may be the caller's own.
	ErrAmbiguous = errors.New("an earlier attempt of this call may have created it")
	// ErrNotFound says that no object has the name.
	ErrNotFound = errors.New("object not found")
	// ErrTruncated says that an object is shorter than what was asked for, or
	// (with io.ErrUnexpectedEOF in the chain) that its transfer broke off.
	ErrTruncated = errors.New("object is shorter than asked for")
	// ErrUnsupported says that the store, or this package, cannot do what was asked.
	ErrUnsupported = errors.New("not supported")
	// ErrDenied says that the credentials are missing, wrong, or lack a permission.
	ErrDenied = errors.New("permission denied by the bucket")
	// ErrNoBucket says that the bucket or container itself does not exist.
	ErrNoBucket = errors.New("bucket does not exist")
	// ErrThrottled says that the store asks for fewer requests (429, 503).
	ErrThrottled = errors.New("throttled by the bucket")
	// ErrRejected says that the store refused the request for good (another 4xx),
	// or that the bucket can no longer be trusted with writes.
	ErrRejected = errors.New("request rejected by the bucket")
	// ErrTimeout says that one attempt took longer than Timeouts allows.
	ErrTimeout = errors.New("no answer from the bucket in time")
	// ErrName says that an object name or range is not valid.
	ErrName = errors.New("invalid object name or range")
)

// Op names a method of Bucket, for metrics, logs and fault injection.
type Op string

// The operations of a bucket.
const (
	OpCreate   Op = "create"
	OpGet      Op = "get"
	OpGetRange Op = "get_range"
	OpList     Op = "list"
	OpDelete   Op = "delete"
)

var allOps = []Op{OpCreate, OpGet, OpGetRange, OpList, OpDelete}

// ObjectInfo is one line of a listing.
type ObjectInfo struct {
	// Name is the full object name, including the folder that was listed.
	Name string
	// Size is the length of the object in bytes.
	Size int64
}

// Bucket is a flat map from names to immutable objects.
//
// Names are UTF-8 paths of at most 1024 bytes with non-empty segments separated
// by "/"; a segment is not "." or "..", and there are no control characters
// (ErrName). A name must not be a folder of another name.
//
// All methods are safe for concurrent use. Slices returned belong to the caller.
//
// A name that was created is seen by every Get, GetRange and List that begins
// after Create returned nil or ErrExists.
//
// Methods make a bounded number of attempts (see RetryPolicy) and then return the
// last error; callers that must go on loop around them and ask Retriable. When ctx
// ends a method returns promptly, with an error that wraps ctx.Err(); only a folder
// whose file system hangs in the kernel, such as one on a dead network mount, holds a
// call until the kernel lets go.
type Bucket interface {
	// Create uploads data as name if no object of that name exists.
	//
	// nil: the object is there, durably, and it is this data. ErrExists: an object
	// of that name exists. It may be this very data: an attempt whose answer was
	// lost is followed by one that finds its own work. If that is known to be
	// possible the error wraps ErrAmbiguous as well, but a proxy or client library
	// can hide an attempt, so a caller that needs to know must always read the
	// object and look for an identity of its own in it.
	//
	// Any other error is ambiguous: the object may or may not be there, now or
	// later. Never shows a partial object. data is not retained and not modified.
	Create(ctx context.Context, name string, data []byte) error

	// Get returns the whole object, or ErrNotFound.
	Get(ctx context.Context, name string) ([]byte, error)

	// GetRange returns exactly length bytes from byte off, or an error: ErrNotFound,
	// or ErrTruncated when the object is shorter or the transfer ended early. A
	// length of 0 returns an empty slice without asking the store.
	GetRange(ctx context.Context, name string, off, length int64) ([]byte, error)

	// List calls fn, in ascending byte order of names, for each object directly in
	// dir whose full name is greater than after ("" means all). dir has no trailing
	// slash, "" is the top; the listing is not recursive. An error of fn ends the
	// listing and is returned as it is. fn may use the bucket. A dir that does not
	// exist is empty.
	List(ctx context.Context, dir, after string, fn func(ObjectInfo) error) error

	// Delete removes name. That there is no such object is not an error. A power
	// failure may undo a recent deletion in a local folder.
	Delete(ctx context.Context, name string) error

	// Location is the URL for people, without secrets, such as s3://bucket/prefix.
	Location() string

	// Local reports whether the bucket is a folder, or memory, of this machine.
	Local() bool

	// Close releases connections. No method may be called after or during it.
	Close() error
}

// Retriable reports whether a call that ended with err may do better when made
// again later. What says something about the request or the object (exists, not
// found, denied, rejected) is not; an end of the caller's context is not.
func Retriable(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	return transient(err)
}

const maxNameLen = 1024

// CheckName returns an error that wraps ErrName unless name can name an object.
func CheckName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: empty name", ErrName)
	case len(name) > maxNameLen:
		return fmt.Errorf("%w: name of %d bytes, at most %d are allowed", ErrName, len(name), maxNameLen)
	case !utf8.ValidString(name):
		return fmt.Errorf("%w: %q is not UTF-8", ErrName, name)
	}
	for segment := range strings.SplitSeq(name, "/") {
		if segment == "" || segment == "." || segment == ".." {
			return fmt.Errorf("%w: %q has a segment %q", ErrName, name, segment)
		}
	}
	for i := range len(name) {
		if name[i] < 0x20 || name[i] == 0x7f {
			return fmt.Errorf("%w: %q has a control character", ErrName, name)
		}
	}
	return nil
}

// inDir reports whether name is an object directly in dir ("" is the top).
func inDir(name, dir string) bool {
	if dir != "" {
		rest, ok := strings.CutPrefix(name, dir)
		if !ok || rest == "" || rest[0] != '/' {
			return false
		}
		name = rest[1:]
	}
	return name != "" && !strings.Contains(name, "/")
}

// dirPrefix is the prefix that all names in dir share.
func dirPrefix(dir string) string {
	if dir == "" {
		return ""
	}
	return dir + "/"
}
