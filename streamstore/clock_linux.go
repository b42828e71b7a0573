package streamstore

import (
	"time"

	"golang.org/x/sys/unix"
)

// bootTime is a monotonic clock that goes on while the machine is suspended.
func bootTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return time.Since(processStart)
	}
	return time.Duration(ts.Nano())
}
