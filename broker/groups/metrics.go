package groups

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are the numbers of the coordinator. No series carries the name of a group, client or topic.
type metrics struct {
	groups                     [numStates]prometheus.Gauge // by state; nil for Dead
	members, pendingMembers    prometheus.Gauge
	rebalances, expiredMembers prometheus.Counter
	commits, expiredOffsets    prometheus.Counter
	storeFails, loadFails      prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "brooklet", Subsystem: "groups", Name: name, Help: help}
	}
	gauge := func(name, help string) prometheus.Gauge { return f.NewGauge(prometheus.GaugeOpts(opts(name, help))) }
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts(opts(name, help)))
	}
	m := &metrics{
		members:        gauge("members", "Members of all groups."),
		pendingMembers: gauge("pending_members", "Member ids handed out whose member has not joined yet."),
		rebalances:     counter("rebalances_total", "Join phases completed, and new epochs of consumer groups."),
		expiredMembers: counter("expired_members_total", "Members removed because they did not send heartbeats, rejoin, sync or revoke in time."),
		commits:        counter("offset_commits_total", "Offsets committed, by partition."),
		expiredOffsets: counter("expired_offsets_total", "Offsets removed because they expired or their topic was deleted."),
		storeFails:     counter("write_failures_total", "Writes of group rows that failed or took too long."),
		loadFails:      counter("load_failures_total", "Times that a group was not usable because its rows cannot be read."),
	}
	states := f.NewGaugeVec(prometheus.GaugeOpts(opts("groups", "Groups that exist.")), []string{"state"})
	for s := Empty; s < numStates; s++ {
		m.groups[s] = states.WithLabelValues(s.String())
	}
	return m
}

func (m *metrics) count(s State, n float64) {
	if g := m.groups[s]; g != nil {
		g.Add(n)
	}
}
