package objstore

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
)

// probeDir is where probe objects are. A process that dies during a probe leaves one
// of 64 bytes behind, which may be deleted by hand.
const probeDir = "probe"

// Probe makes sure that b is fit to hold a commit log: that a second create of a name
// is refused and leaves the object as it was, and that reads, range reads and listings
// see an object once it was created. It creates, and removes, objects in the folder
// "probe".
//
// Some stores that speak a provider's protocol ignore the condition of a conditional
// write, and would let two writers overwrite each other; the error says what is needed
// then. While the store cannot be reached or is throttled Probe goes on, until ctx ends.
func Probe(ctx context.Context, b Bucket) error {
	opts := Options{}
	opts.EnsureDefaults()
	return probe(ctx, b, opts.Retry, opts.Logger)
}

// unfitError is the verdict over a store that breaks the contract.
type unfitError struct{ location, reason string }

func (e *unfitError) Error() string {
	return fmt.Sprintf("bucket %s cannot be used: %s", e.location, e.reason)
}

func (e *unfitError) Unwrap() error { return ErrUnsupported }

func probe(ctx context.Context, b Bucket, policy RetryPolicy, log *zap.Logger) error {
	taken := 0
	for failed := 1; ; failed++ {
		err := newProber(b).run(ctx)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, ErrExists):
			// A name that cannot exist does.
			if taken++; taken == 3 {
				return &unfitError{b.Location(), "it says of new objects that they exist. Check the proxy in front of it, if any."}
			}
		case ctx.Err() != nil:
			return fmt.Errorf("gave up waiting for bucket %s: %w", b.Location(), err)
		case !transient(err):
			return explain(b.Location(), err)
		}
		wait := policy.wait(failed, true) // unhurried, whatever the error
		log.Warn("bucket does not answer as it should, will try again",
			zap.String("bucket", b.Location()), zap.Duration("wait", wait.Round(time.Millisecond)), zap.Error(err))
		if sleep(ctx, wait) != nil {
			return fmt.Errorf("gave up waiting for bucket %s: %w", b.Location(), joinContext(ctx, err))
		}
	}
}

// explain says what to do about an error that will not go away.
func explain(location string, err error) error {
	var unfit *unfitError
	switch {
	case errors.As(err, &unfit):
		return err
	case errors.Is(err, ErrDenied):
		return fmt.Errorf("bucket %s: check the credentials and their rights to create, read, list and delete objects: %w", location, err)
	case errors.Is(err, ErrNoBucket):
		return fmt.Errorf("bucket %s: create it first, or check name, region and endpoint: %w", location, err)
	case errors.Is(err, ErrUnsupported):
		return fmt.Errorf("bucket %s: a store that can create objects only if absent and lists them in order is needed: %w", location, err)
	}
	return fmt.Errorf("bucket %s: %w", location, err)
}

// prober makes one round of requests with objects of its own.
type prober struct {
	bucket        Bucket
	name          string
	first, second []byte
}

func newProber(b Bucket) *prober {
	p := &prober{bucket: b, first: make([]byte, 64), second: make([]byte, 64)}
	rand.Read(p.first)
	rand.Read(p.second)
	p.name = probeDir + "/" + hex.EncodeToString(p.first[:16])
	return p
}

func (p *prober) run(ctx context.Context) error {
	err := p.bucket.Create(ctx, p.name, p.first)
	if err != nil && !errors.Is(err, ErrAmbiguous) { // then the checks will tell
		return err
	}
	for _, check := range []func(context.Context) error{p.checkCreate, p.checkGet, p.checkRange, p.checkList} {
		if err := check(ctx); err != nil {
			// Best effort: the error matters more than a small object.
			_ = p.bucket.Delete(ctx, p.name)
			return err
		}
	}
	return p.bucket.Delete(ctx, p.name)
}

func (p *prober) unfit(reason string) error {
	return &unfitError{p.bucket.Location(), reason}
}

func (p *prober) checkCreate(ctx context.Context) error {
	err := p.bucket.Create(ctx, p.name, p.second)
	if err == nil {
		return p.unfit("it overwrote an object that was to be created only if absent, so two brokers could overwrite " +
			"each other's data. Use a store, or a version of it, that honours conditional writes " +
			"(S3: If-None-Match: * on PutObject; GCS: ifGenerationMatch=0; Azure: If-None-Match: * on Put Blob).")
	}
	if errors.Is(err, ErrExists) {
		return nil
	}
	return err
}

func (p *prober) checkGet(ctx context.Context) error {
	data, err := p.bucket.Get(ctx, p.name)
	switch {
	case errors.Is(err, ErrNotFound):
		return p.unfit("an object cannot be read right after it was created; read-after-write consistency is needed.")
	case err != nil:
		return err
	case bytes.Equal(data, p.second):
		return p.unfit("it said that an object exists and overwrote it all the same; a store that honours conditional writes is needed.")
	case !bytes.Equal(data, p.first):
		return p.unfit("it returned other bytes than were stored.")
	}
	return nil
}

func (p *prober) checkRange(ctx context.Context) error {
	data, err := p.bucket.GetRange(ctx, p.name, 24, 16)
	if err == nil && bytes.Equal(data, p.first[24:40]) {
		return nil
	}
	if err == nil || errors.Is(err, ErrTruncated) && !transient(err) {
		return p.unfit("it does not answer range requests rightly; a store that honours the Range header is needed.")
	}
	return err
}

// checkList begins the listing just before the object, so that leftovers do not count.
func (p *prober) checkList(ctx context.Context) error {
	found := false
	stop := errors.New("seen")
	err := p.bucket.List(ctx, probeDir, p.name[:len(p.name)-1], func(o ObjectInfo) error {
		found = o.Name == p.name && o.Size == int64(len(p.first))
		return stop
	})
	if err != nil && err != stop {
		return err
	}
	if !found {
		return p.unfit("an object is not listed right after it was created; consistent listings, in order and with sizes, are needed.")
	}
	return nil
}
