package httpapi

import (
	"net/http"
	"strings"

	"github.com/brookletmq/brooklet/streamstore"
)

// Limits of a page of a list.
const (
	defaultListLimit = 100
	maxListLimit     = 1000
)

// listPage is a page of a list of streams.
type listPage struct {
	Streams []description `json:"streams"`
	// Next is the parameter after of the next page, absent on the last.
	Next string `json:"next,omitempty"`
}

// list answers GET on all streams: a page of those under a prefix, in order of names; with live=sse their records.
func (s *Server) list(x *exchange) error {
	q := newQuery(x.r)
	prefix, _ := q.text("prefix")
	if strings.HasPrefix(prefix, "_") {
		return reservedName.new("names that begin with '_' are the broker's own")
	}
	live := q.choice("live", liveSSE)
	if live == "" {
		x.Header().Add("Vary", "Accept")
		offers := []string{mediaJSON, mediaEvents}
		switch i := bestOffer(strings.Join(x.r.Header.Values("Accept"), ","), offers); {
		case i < 0:
			return notAcceptable.new("the client accepts %q; there are %s", x.r.Header.Get("Accept"), strings.Join(offers, ", "))
		case offers[i] == mediaEvents:
			live = liveSSE
		}
	}
	if live == liveSSE {
		rq, err := prefixRequest(q)
		if err != nil {
			return err
		}
		return s.followPrefix(x, prefix, rq)
	}
	after, _ := q.text("after")
	limit := int(q.number("limit", defaultListLimit, 1, maxListLimit))
	if err := q.done(); err != nil {
		return err
	}
	infos, more, err := s.listStreams(prefix, after, limit)
	if err != nil {
		return err
	}
	page := listPage{Streams: make([]description, len(infos))}
	for i := range infos {
		page.Streams[i] = describe(&infos[i])
	}
	if more {
		page.Next = infos[len(infos)-1].Name
	}
	return x.writeJSON(http.StatusOK, &page)
}

// prefixRequest reads the parameters of a read of all streams under a prefix.
func prefixRequest(q *query) (*readRequest, error) {
	rq := &readRequest{form: formJSON}
	if q.choice("from", "start", "tail") == "tail" {
		rq.from.kind = atTail
	}
	rq.cursor, _ = q.text("cursor")
	switch q.choice("values", "auto", "base64", "json") {
	case "base64":
		rq.values = valuesBase64
	case "json":
		rq.values = valuesJSON
	}
	return rq, q.done()
}

// afterReserved comes behind all names that begin with '_', because no name has this byte, and before all others that
// come behind them.
const afterReserved = "_\xff"

// listStreams returns up to limit streams in order of names, without the broker's own, and whether there are more.
func (s *Server) listStreams(prefix, after string, limit int) (infos []streamstore.StreamInfo, more bool, err error) {
	for len(infos) <= limit {
		page, err := s.store.List(prefix, after, limit+1-len(infos))
		if err != nil {
			return nil, false, err
		}
		if len(page) == 0 {
			break
		}
		for _, info := range page {
			after = info.Name
			if info.Name[0] == '_' {
				after = afterReserved
				break
			}
			infos = append(infos, info)
		}
	}
	if len(infos) > limit {
		return infos[:limit], true, nil
	}
	return infos, false, nil
}
