package objstore

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

// Options are the settings of Open and Wrap.
type Options struct {
	// URL says where the bucket is; required by Open. One of
	//
	//	file:///var/lib/brooklet/bucket
	//	s3://bucket/prefix?region=eu-central-1&endpoint=minio:9000&insecure=true
	//	gs://bucket/prefix
	//	azblob://container/prefix?account=name
	//	mem://
	//	/etc/brooklet/bucket.yaml
	//
	// the last being a file in the format of thanos-io/objstore (type, config,
	// prefix) with type S3, GCS, AZURE or FILESYSTEM.
	URL string
	// Logger receives what people should know; nil logs nothing.
	Logger *zap.Logger
	// Registerer receives the metrics; nil registers none.
	Registerer prometheus.Registerer
	// Timeouts limit single attempts.
	Timeouts Timeouts
	// Retry says how often and how fast attempts are made.
	Retry RetryPolicy
	// SkipProbe opens the bucket without writing to it. Only for tools that read:
	// a store that ignores create-if-absent goes unnoticed.
	SkipProbe bool
	// Existing refuses a folder that is not there, in place of making it. Other
	// buckets are never made.
	Existing bool
}

// Timeouts limit one attempt of a call; zero fields take the defaults.
type Timeouts struct {
	// Request limits an attempt, apart from the time for its bytes. For a listing
	// it limits the time without a new name. Default 15 s.
	Request time.Duration
	// MinBytesPerSecond gives an attempt more time by its size: a Create or
	// GetRange of n bytes may take n/MinBytesPerSecond longer. Default 1 MiB/s.
	MinBytesPerSecond int64
	// Get limits an attempt of Get, whose size is not known. Default 2 min.
	Get time.Duration
}

// RetryPolicy bounds the attempts of one call; zero fields take the defaults.
// The wait before attempt n+1 is random between 0 and Base*2^(n-1), at most Max.
type RetryPolicy struct {
	// MaxAttempts is the number of attempts per call, the first included. A listing
	// counts anew after each name it delivers. Default 5.
	MaxAttempts int
	// MaxElapsed is the age of a call after which no further attempt begins.
	// Default 30 s.
	MaxElapsed time.Duration
	// Base is the first bound of the wait. Default 100 ms.
	Base time.Duration
	// Max is the largest bound of the wait. Default 5 s.
	Max time.Duration
	// ThrottledBase and ThrottledMax replace Base and Max after ErrThrottled, and
	// the wait is then at least half of the bound. Default 1 s and 20 s.
	ThrottledBase, ThrottledMax time.Duration
}

// EnsureDefaults fills in the fields that are zero.
func (o *Options) EnsureDefaults() {
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	setDefault(&o.Timeouts.Request, 15*time.Second)
	setDefault(&o.Timeouts.MinBytesPerSecond, 1<<20)
	setDefault(&o.Timeouts.Get, 2*time.Minute)
	setDefault(&o.Retry.MaxAttempts, 5)
	setDefault(&o.Retry.MaxElapsed, 30*time.Second)
	setDefault(&o.Retry.Base, 100*time.Millisecond)
	setDefault(&o.Retry.Max, 5*time.Second)
	setDefault(&o.Retry.ThrottledBase, time.Second)
	setDefault(&o.Retry.ThrottledMax, 20*time.Second)
}

func setDefault[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// Validate reports everything that is wrong with o, after EnsureDefaults.
func (o *Options) Validate() error {
	var errs []error
	positive := func(name string, v int64) {
		if v <= 0 {
			errs = append(errs, fmt.Errorf("objstore: %s is %d and must be positive", name, v))
		}
	}
	positive("Timeouts.Request", int64(o.Timeouts.Request))
	positive("Timeouts.MinBytesPerSecond", o.Timeouts.MinBytesPerSecond)
	positive("Timeouts.Get", int64(o.Timeouts.Get))
	positive("Retry.MaxAttempts", int64(o.Retry.MaxAttempts))
	positive("Retry.MaxElapsed", int64(o.Retry.MaxElapsed))
	positive("Retry.Base", int64(o.Retry.Base))
	positive("Retry.Max", int64(o.Retry.Max))
	positive("Retry.ThrottledBase", int64(o.Retry.ThrottledBase))
	positive("Retry.ThrottledMax", int64(o.Retry.ThrottledMax))
	return errors.Join(errs...)
}

// forBytes is the time limit of an attempt that moves n bytes.
func (t Timeouts) forBytes(n int64) time.Duration {
	return t.Request + time.Duration(float64(n)/float64(t.MinBytesPerSecond)*float64(time.Second))
}
