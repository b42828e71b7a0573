package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	groupMembers      = 1000
	heartbeatInterval = 3 * time.Second // the clients' default
	heartbeatRounds   = 10
	joinRequests      = 3 // of a member: JoinGroup for an id, JoinGroup, SyncGroup
	pacedRounds       = 2 // of the reference for heartbeats
)

// benchGroups: what many members cost, in one group and in groups of their own. Each has a connection, as clients do.
// The references are round trips of ApiVersions, which the broker answers without thinking, over the same connections:
// all at once, and at the pace of heartbeats, where waking up for each request costs most.
func benchGroups(ctx context.Context, work string) error {
	fmt.Printf("\ngroups: %d members, one connection each\n", groupMembers)
	fmt.Printf("%-52s %10s %10s %12s\n", "", "time", "CPU", "CPU/request")
	dir, err := freshDir(work, "groups")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s, err := startServer(ctx, dir)
	if err != nil {
		return err
	}
	return errors.Join(groupScenarios(ctx, s), s.stop())
}

func groupScenarios(ctx context.Context, s *server) error {
	one, err := dialMembers(ctx, s.addr, func(int) string { return "bench" })
	if err != nil {
		return err
	}
	defer one.close()
	if err := one.reference(s, fmt.Sprintf("reference: %d ApiVersions each, at once", joinRequests), joinRequests, 0); err != nil {
		return err
	}
	if err := one.stabilize(s, "one group"); err != nil {
		return err
	}
	if err := one.reference(s, fmt.Sprintf("reference: %d ApiVersions each, every %v", pacedRounds, heartbeatInterval), pacedRounds, heartbeatInterval); err != nil {
		return err
	}
	if err := one.heartbeats(s); err != nil {
		return err
	}
	one.close()

	many, err := dialMembers(ctx, s.addr, func(i int) string { return fmt.Sprintf("bench-%d", i) })
	if err != nil {
		return err
	}
	defer many.close()
	return many.stabilize(s, fmt.Sprintf("%d groups", groupMembers))
}

// members are connections that are used at the same time.
type members struct {
	ctx  context.Context
	list []*member
}

func dialMembers(ctx context.Context, addr string, group func(i int) string) (*members, error) {
	m := &members{ctx: ctx, list: make([]*member, groupMembers)}
	for i := range m.list {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			m.close()
			return nil, err
		}
		const buffer = 4 << 10 // replies are small but for the leader's
		m.list[i] = &member{
			conn: conn{c, bufio.NewReaderSize(c, buffer)}, group: group(i),
			formatter: kmsg.NewRequestFormatter(kmsg.FormatterClientID("bench")),
		}
	}
	return m, nil
}

func (m *members) close() {
	for _, one := range m.list {
		if one != nil {
			one.Close()
		}
	}
}

// each calls do for all members at once.
func (m *members) each(do func(*member) error) error {
	defer context.AfterFunc(m.ctx, m.close)()
	errs := make([]error, len(m.list))
	var done sync.WaitGroup
	for i, one := range m.list {
		done.Go(func() { errs[i] = do(one) })
	}
	done.Wait()
	for _, err := range errs {
		if err != nil {
			return errors.Join(m.ctx.Err(), err) // others fail for the same reason
		}
	}
	return m.ctx.Err()
}

// measure prints what do takes, which sends so many requests for each member.
func (m *members) measure(s *server, what string, requests int, do func() error) error {
	before, err := s.cpu()
	if err != nil {
		return err
	}
	started := time.Now()
	if err := do(); err != nil {
		return err
	}
	took := time.Since(started)
	after, err := s.cpu()
	if err != nil {
		return err
	}
	used := after - before
	fmt.Printf("%-52s %10v %10v %12v\n", what, took.Round(time.Millisecond), used, (used / time.Duration(requests*len(m.list))).Round(time.Microsecond))
	return nil
}

// reference has each member ask for ApiVersions so many times.
func (m *members) reference(s *server, what string, rounds int, spread time.Duration) error {
	return m.measure(s, what, rounds, func() error {
		return m.paced(rounds, spread, func(one *member) error {
			_, err := one.do(kmsg.NewPtrApiVersionsRequest())
			return err
		})
	})
}

// paced calls do for each member so many times, one interval apart. The members take turns within it.
func (m *members) paced(rounds int, interval time.Duration, do func(*member) error) error {
	for i, one := range m.list {
		one.turn = interval * time.Duration(i) / time.Duration(len(m.list))
	}
	return m.each(func(one *member) error {
		wait := one.turn
		for range rounds {
			select {
			case <-m.ctx.Done():
				return m.ctx.Err()
			case <-time.After(wait):
			}
			if err := do(one); err != nil {
				return err
			}
			wait = interval
		}
		return nil
	})
}

// stabilize takes the members from the first JoinGroup to the last SyncGroup. The wait of an empty group for more
// members, in which nothing happens, is printed beside: it lasts from the last JoinGroup sent to the first answered.
func (m *members) stabilize(s *server, what string) error {
	var waited time.Duration
	err := m.measure(s, what+": first JoinGroup to last SyncGroup", joinRequests, func() error {
		if err := m.each((*member).join); err != nil {
			return err
		}
		var sent, answered time.Time
		for _, one := range m.list {
			if one.sent.After(sent) {
				sent = one.sent
			}
			if answered.IsZero() || one.answered.Before(answered) {
				answered = one.answered
			}
		}
		waited = answered.Sub(sent)
		return m.each((*member).sync)
	})
	if err == nil {
		fmt.Printf("%-52s %10v\n", "  of it waiting for more members", waited.Round(time.Millisecond))
	}
	return err
}

// heartbeats sends them as clients do.
func (m *members) heartbeats(s *server) error {
	what := fmt.Sprintf("one group: %d heartbeats each, every %v", heartbeatRounds, heartbeatInterval)
	return m.measure(s, what, heartbeatRounds, func() error {
		return m.paced(heartbeatRounds, heartbeatInterval, (*member).heartbeat)
	})
}

// member is a connection that is a member of a group. It does one request after the other.
type member struct {
	conn
	formatter  *kmsg.RequestFormatter
	group, id  string
	generation int32
	others     []kmsg.JoinGroupResponseMember // all members, if this is the leader
	// sent and answered are when it sent its last JoinGroup and got the reply.
	sent, answered time.Time
	turn           time.Duration // when it begins in an interval that all share
	reply          []byte
}

// do sends a request and waits for the reply.
func (m *member) do(req kmsg.Request) (kmsg.Response, error) {
	const correlation = 1
	if _, err := m.Write(m.formatter.AppendRequest(nil, req, correlation)); err != nil {
		return nil, err
	}
	var err error
	if m.reply, err = m.readReply(m.reply); err != nil {
		return nil, err
	}
	if len(m.reply) < 5 || binary.BigEndian.Uint32(m.reply) != correlation {
		return nil, fmt.Errorf("%s: a reply of %d bytes to another request", kmsg.NameForKey(req.Key()), len(m.reply))
	}
	body, resp := m.reply[4:], req.ResponseKind()
	if resp.IsFlexible() && resp.Key() != int16(kmsg.ApiVersions) {
		body = body[1:] // no tags
	}
	return resp, resp.ReadFrom(body)
}

func (m *member) join() error {
	req := kmsg.NewPtrJoinGroupRequest()
	req.Version = 9
	req.Group, req.ProtocolType = m.group, "consumer"
	req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = 45_000, 60_000
	p := kmsg.NewJoinGroupRequestProtocol()
	p.Name, p.Metadata = "range", make([]byte, 100) // as large as a subscription to a few topics
	req.Protocols = append(req.Protocols, p)
	for {
		req.MemberID = m.id
		m.sent = time.Now()
		resp, err := m.do(req)
		if err != nil {
			return err
		}
		m.answered = time.Now()
		joined := resp.(*kmsg.JoinGroupResponse)
		switch err := kerr.ErrorForCode(joined.ErrorCode); {
		case errors.Is(err, kerr.MemberIDRequired):
			m.id = joined.MemberID
		case err != nil:
			return fmt.Errorf("JoinGroup: %w", err)
		default:
			m.generation, m.others = joined.Generation, joined.Members
			return nil
		}
	}
}

func (m *member) sync() error {
	req := kmsg.NewPtrSyncGroupRequest()
	req.Version = 5
	req.Group, req.MemberID, req.Generation = m.group, m.id, m.generation
	req.ProtocolType, req.Protocol = kmsg.StringPtr("consumer"), kmsg.StringPtr("range")
	for _, other := range m.others {
		a := kmsg.NewSyncGroupRequestGroupAssignment()
		a.MemberID, a.MemberAssignment = other.MemberID, make([]byte, 100)
		req.GroupAssignment = append(req.GroupAssignment, a)
	}
	resp, err := m.do(req)
	if err != nil {
		return err
	}
	synced := resp.(*kmsg.SyncGroupResponse)
	if err := kerr.ErrorForCode(synced.ErrorCode); err != nil {
		return fmt.Errorf("SyncGroup: %w", err)
	}
	if len(synced.MemberAssignment) == 0 {
		return errors.New("SyncGroup: a member got no assignment")
	}
	return nil
}

func (m *member) heartbeat() error {
	req := kmsg.NewPtrHeartbeatRequest()
	req.Version = 4
	req.Group, req.MemberID, req.Generation = m.group, m.id, m.generation
	resp, err := m.do(req)
	if err != nil {
		return err
	}
	if err := kerr.ErrorForCode(resp.(*kmsg.HeartbeatResponse).ErrorCode); err != nil {
		return fmt.Errorf("heartbeat: %w", err)
	}
	return nil
}
