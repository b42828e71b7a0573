package objstore

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"
)

// Open opens the bucket at opts.URL, whose forms are documented there, and proves
// with Probe that it can be relied on.
//
// A store that cannot be reached, or is throttled, is no reason to give up: Open logs
// and waits for it until ctx ends. What a person must mend (a bad address, missing
// permissions, a store without create-if-absent) is an error at once.
func Open(ctx context.Context, opts Options) (Bucket, error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	src, err := parseSource(opts.URL)
	if err != nil {
		return nil, err
	}
	provider, err := src.open(ctx, opts)
	if err != nil {
		return nil, fmt.Errorf("open bucket: %w", err)
	}
	b, err := Wrap(provider, opts)
	if err != nil {
		return nil, errors.Join(err, provider.Close())
	}
	if opts.SkipProbe {
		return b, nil
	}
	if err := probe(ctx, b, opts.Retry, opts.Logger); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	opts.Logger.Info("bucket is ready", zap.String("bucket", b.Location()))
	return b, nil
}
