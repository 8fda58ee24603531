package admin

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"idemd/event"
	"idemd/queue"
)

// scanBound is how many stored events one request looks at. A list that finds
// little answers with what it has, and a cursor to go on from.
const scanBound = 50_000

func (s *Server) view(m queue.Message) Event {
	ev := &m.Event
	v := Event{
		ID: ev.ID(), Seq: m.Seq, Source: ev.Source, Type: ev.Type,
		PlatformID: ev.Identity.Text(), Kind: ev.Identity.Kind, Tenant: ev.Identity.Tenant,
		Received: ev.Received.UTC(), Origin: ev.Origin, Batch: ev.Batch,
		ContentType: ev.ContentType, Size: len(ev.Body), Handlers: []string{},
	}
	if !ev.Time.IsZero() {
		t := ev.Time.UTC()
		v.Time = &t
	}
	for _, h := range s.wanted(ev) {
		v.Handlers = append(v.Handlers, h.Name)
	}
	return v
}

// eventFilter is an EventFilter that is ready for use.
type eventFilter struct {
	source, typ string
	oldest      time.Time // zero: no bound
	unrouted    bool
}

func (s *Server) filterOf(r *http.Request) (eventFilter, error) {
	q := r.URL.Query()
	source, err := s.sourceID(q.Get("source"))
	if err != nil {
		return eventFilter{}, err
	}
	f := eventFilter{source: source, typ: q.Get("type"), unrouted: q.Get("unrouted") == "true"}
	since, err := sinceOf(r, 0)
	if err == nil && since > 0 {
		f.oldest = time.Now().Add(-since)
	}
	return f, err
}

// sourceID gives the id of a configured source by name or id; of "" it is "".
func (s *Server) sourceID(word string) (string, error) {
	if id, ok := s.b.Sources()[word]; ok {
		return id, nil
	}
	if word == "" {
		return "", nil
	}
	for _, id := range s.b.Sources() {
		if id == word {
			return id, nil
		}
	}
	return "", &Error{CodeNotFound, fmt.Sprintf("there is no source %q", word), knownHint("source", slices.Collect(maps.Keys(s.b.Sources())))}
}

// knownHint lists what could have been meant.
func knownHint(what string, known []string) string {
	if len(known) == 0 {
		return "no " + what + " is configured"
	}
	slices.Sort(known)
	for i, name := range known {
		known[i] = strconv.Quote(name)
	}
	return "known: " + strings.Join(slices.Compact(known), ", ")
}

func badCursor(cursor string) error {
	return &Error{CodeBadRequest, fmt.Sprintf("%q is not a cursor of this list", cursor), "take it from the page before"}
}

func (s *Server) wants(f eventFilter, ev *event.Event) bool {
	return (f.source == "" || f.source == ev.Source) && matchType(f.typ, ev.Type) &&
		(!f.unrouted || len(s.wanted(ev)) == 0)
}

func matchType(pattern, typ string) bool {
	if prefix, glob := strings.CutSuffix(pattern, "*"); glob {
		return strings.HasPrefix(typ, prefix)
	}
	return pattern == "" || pattern == typ
}

func (s *Server) listEvents(r *http.Request) (any, error) {
	limit, err := limitOf(r)
	if err != nil {
		return nil, err
	}
	f, err := s.filterOf(r)
	if err != nil {
		return nil, err
	}
	var from uint64
	if cursor := r.URL.Query().Get("cursor"); cursor != "" {
		if from, err = strconv.ParseUint(cursor, 10, 64); err != nil || from == 0 {
			return nil, badCursor(cursor)
		}
	}
	page := Page[Event]{Items: []Event{}}
	seen := 0
	err = s.b.Queue.Scan(r.Context(), from, func(m queue.Message) (bool, error) {
		if m.Stored.Before(f.oldest) {
			return false, nil
		}
		if seen++; s.wants(f, &m.Event) {
			page.Items = append(page.Items, s.view(m))
		}
		if (len(page.Items) == limit || seen == scanBound) && m.Seq > 1 {
			page.Next = strconv.FormatUint(m.Seq-1, 10)
			return false, nil
		}
		return true, nil
	})
	if err != nil {
		return nil, fmt.Errorf("list events: %w", err)
	}
	return page, nil
}

func (s *Server) showEvent(r *http.Request) (any, error) {
	found, err := s.find(r)
	if err != nil {
		return nil, err
	}
	detail := s.detail(found)
	if detail.Suppressions, err = s.suppressions(r.Context(), found.message); err != nil {
		return nil, err
	}
	if r.URL.Query().Get("body") == "true" {
		if body := found.message.Event.Body; utf8.Valid(body) {
			detail.Body = string(body)
		} else {
			detail.BodyBase64 = body
		}
	}
	return detail, nil
}

func (s *Server) detail(f *found) EventDetail {
	d := EventDetail{Event: s.view(f.message), Count: f.count, Deliveries: []Delivery{}, Partial: f.partial}
	for _, m := range f.deliveries {
		d.Deliveries = append(d.Deliveries, Delivery{
			Seq: m.Seq, Received: m.Event.Received.UTC(), Origin: m.Event.Origin,
			Differs: m.Event.Origin == f.deliveries[0].Event.Origin &&
				m.Event.Fingerprint.Differs(f.deliveries[0].Event.Fingerprint),
		})
	}
	slices.SortFunc(d.Deliveries, func(a, b Delivery) int { return int(int64(a.Seq) - int64(b.Seq)) })
	return d
}

// tail writes events as they are stored, one JSON value a line, until the caller
// has gone or idemd stops.
func (s *Server) tail(w http.ResponseWriter, r *http.Request) {
	f, err := s.filterOf(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w)
	if err := flush.Flush(); err != nil {
		s.b.Logger.Debug("admin answer was not read", "path", r.URL.Path, "error", err)
		return
	}
	ctx, over := s.tails.begin(r.Context())
	defer over()
	enc := json.NewEncoder(w)
	err = s.b.Queue.Tail(ctx, func(m queue.Message) error {
		if !s.wants(f, &m.Event) {
			return nil
		}
		if err := enc.Encode(s.view(m)); err != nil {
			return err
		}
		return flush.Flush()
	})
	s.b.Logger.Debug("tail ended", "error", err)
}
