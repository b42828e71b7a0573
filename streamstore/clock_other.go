//go:build !linux

package streamstore

import "time"

// bootTime is a monotonic clock. Where the system's stands still while the machine
// is suspended, a writer that was suspended notices a newer one only by the number
// that it took.
func bootTime() time.Duration { return time.Since(processStart) }
