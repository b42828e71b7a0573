package main

import (
	"context"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"go.uber.org/zap"
)

// notifier tells the service manager how the broker is (sd_notify(3)). Without one, NOTIFY_SOCKET is not set and
// nothing happens.
type notifier struct{ log *zap.Logger }

func (n notifier) send(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		n.log.Warn("cannot notify the service manager", zap.String("state", state), zap.Error(err))
	}
}

func (n notifier) status(text string) { n.send("STATUS=" + text) }

func (n notifier) ready(text string) { n.send(daemon.SdNotifyReady + "\nSTATUS=" + text) }

func (n notifier) stopping(text string) { n.send(daemon.SdNotifyStopping + "\nSTATUS=" + text) }

// watch feeds the service manager's watchdog until ctx ends, at half of its time and only while healthy says so. A
// broker that is not healthy for that long is restarted.
func (n notifier) watch(ctx context.Context, healthy func() bool) {
	within, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		n.log.Warn("WATCHDOG_USEC is not understood; the watchdog is not fed", zap.Error(err))
	}
	if err != nil || within == 0 {
		return
	}
	ticks := time.NewTicker(within / 2)
	defer ticks.Stop()
	for {
		if healthy() {
			n.send(daemon.SdNotifyWatchdog)
		}
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return
		}
	}
}
