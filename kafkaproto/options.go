package kafkaproto

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

// Options configure a [Server]. Zero values mean the defaults given here.
type Options struct {
	// Versions says which APIs are served. Required.
	Versions *Versions

	// MaxFrameBytes is the largest request accepted, in bytes, without its size
	// field. Default 100 MiB, Kafka's socket.request.max.bytes; at most 256 MiB, so
	// that the first bytes of TLS, HTTP and SSH are never taken for a size.
	MaxFrameBytes int
	// MaxControlFrameBytes is the same for requests other than Produce. They are
	// decoded into structs that a hostile client can make 128 times as large, for the
	// moment it takes to refuse them. Default 4 MiB, enough for a fetch of 50,000
	// partitions; at most a 256th of MaxRequestMemory.
	MaxControlFrameBytes int
	// MaxRequestMemory bounds, in bytes, what requests and responses of all
	// connections hold: requests from the moment they are read until their response
	// is there, responses until they are written. Small ones, up to 16 KiB, have a
	// share that large ones cannot use, and up to 8 KiB of each connection are not
	// counted. When a share is used up, connections are not read for up to 30 s,
	// and then closed. Default 1 GiB, at least 64 MiB and at least four times
	// MaxFrameBytes.
	MaxRequestMemory int64
	// MaxConnections is the number of open connections beyond which new ones are
	// closed at once. Default 16384.
	MaxConnections int
	// MaxConnectionsPerIP is the same for one remote address. Default: no limit of
	// its own.
	MaxConnectionsPerIP int
	// MaxInFlight is the number of requests of one connection that may be unanswered
	// before the connection is no longer read. At most four of them may be other than
	// Produce. Default 64.
	MaxInFlight int

	// FirstByteTimeout closes a new connection that says nothing. Default 30 s.
	FirstByteTimeout time.Duration
	// IdleTimeout closes a connection that has no request in flight and sends
	// none. Default 10 min, Kafka's connections.max.idle.ms.
	IdleTimeout time.Duration
	// FrameTimeout is the time within which a request must arrive, and 1 s more for
	// each 256 KiB of it. A peer that stalls in the middle has FrameTimeout from
	// then. Default 30 s.
	FrameTimeout time.Duration
	// WriteTimeout is the same for the peer that takes a response. Default 30 s.
	WriteTimeout time.Duration

	// Logger gets one line per connection that was closed for a reason other than
	// the peer's wish, bounded per remote address. Default: none.
	Logger *zap.Logger
	// Registerer gets the metrics. Default: none.
	Registerer prometheus.Registerer
}

// EnsureDefaults fills in fields that are zero.
func (o *Options) EnsureDefaults() {
	setDefault(&o.MaxFrameBytes, 100<<20)
	setDefault(&o.MaxControlFrameBytes, 4<<20)
	setDefault(&o.MaxRequestMemory, 1<<30)
	setDefault(&o.MaxConnections, 16384)
	setDefault(&o.MaxConnectionsPerIP, o.MaxConnections)
	setDefault(&o.MaxInFlight, 64)
	setDefault(&o.FirstByteTimeout, 30*time.Second)
	setDefault(&o.IdleTimeout, 10*time.Minute)
	setDefault(&o.FrameTimeout, 30*time.Second)
	setDefault(&o.WriteTimeout, 30*time.Second)
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Limits of Options fields.
const (
	maxMaxFrameBytes    = 256 << 20
	minMaxRequestMemory = 64 << 20
	// What MaxRequestMemory must be at least for a frame of one byte.
	memoryPerFrameByte        = 4
	memoryPerControlFrameByte = 2 * decodeFactor
)

// FrameLimits returns the largest MaxFrameBytes and MaxControlFrameBytes that go with
// a MaxRequestMemory of memory bytes.
func FrameLimits(memory int64) (frame, control int64) {
	return memory / memoryPerFrameByte, memory / memoryPerControlFrameByte
}

// Validate reports everything that is wrong with the options, defaults applied.
func (o *Options) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("kafkaproto: "+format, args...))
		}
	}
	check(o.Versions != nil, "Versions is not set; make it with NewVersions from the registered API keys")
	check(o.MaxFrameBytes >= minFrameBytes && o.MaxFrameBytes <= maxMaxFrameBytes,
		"MaxFrameBytes is %d, it must be between %d and %d", o.MaxFrameBytes, minFrameBytes, maxMaxFrameBytes)
	check(o.MaxRequestMemory >= minMaxRequestMemory,
		"MaxRequestMemory is %d, it must be at least %d", o.MaxRequestMemory, minMaxRequestMemory)
	frame, control := FrameLimits(o.MaxRequestMemory)
	check(int64(o.MaxFrameBytes) <= frame,
		"MaxFrameBytes is %d, but MaxRequestMemory of %d allows %d: lower MaxFrameBytes, or raise MaxRequestMemory to %d",
		o.MaxFrameBytes, o.MaxRequestMemory, frame, int64(o.MaxFrameBytes)*memoryPerFrameByte)
	check(o.MaxControlFrameBytes >= minFrameBytes, "MaxControlFrameBytes is %d, it must be at least %d", o.MaxControlFrameBytes, minFrameBytes)
	check(int64(o.MaxControlFrameBytes) <= control,
		"MaxControlFrameBytes is %d, but MaxRequestMemory of %d allows %d: lower MaxControlFrameBytes, or raise MaxRequestMemory to %d",
		o.MaxControlFrameBytes, o.MaxRequestMemory, control, int64(o.MaxControlFrameBytes)*memoryPerControlFrameByte)
	check(o.MaxConnections > 0, "MaxConnections is %d, it must be positive", o.MaxConnections)
	check(o.MaxConnectionsPerIP > 0, "MaxConnectionsPerIP is %d, it must be positive", o.MaxConnectionsPerIP)
	check(o.MaxInFlight > 0, "MaxInFlight is %d, it must be positive", o.MaxInFlight)
	for name, d := range map[string]time.Duration{
		"FirstByteTimeout": o.FirstByteTimeout,
		"IdleTimeout":      o.IdleTimeout,
		"FrameTimeout":     o.FrameTimeout,
		"WriteTimeout":     o.WriteTimeout,
	} {
		check(d > 0, "%s is %v, it must be positive", name, d)
	}
	return errors.Join(errs...)
}
