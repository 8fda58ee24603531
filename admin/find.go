package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"idemd/queue"
)

// defaultSince is how far back an event is looked for by an id.
const defaultSince = 24 * time.Hour

// minPrefix is how much of an id must be given, in bytes.
const minPrefix = 8

// maxDeliveries bounds the deliveries that are told one by one.
const maxDeliveries = 100

// found is an event that somebody named.
type found struct {
	message    queue.Message   // the delivery that was named; by an id the oldest one
	deliveries []queue.Message // the oldest with its id, oldest first, without bodies
	count      int             // of all with its id that were looked at
	partial    bool            // there may be older ones
}

// find looks for the event that the request names: a stream sequence, an evt_ id
// or a unique beginning of one, or the platform's own id. Ids are looked for
// from the newest event backwards, as far as since says. With a source, a number
// is an id of that source.
func (s *Server) find(r *http.Request) (*found, error) {
	word := r.PathValue("event")
	since, err := sinceOf(r, defaultSince)
	if err != nil {
		return nil, err
	}
	source, err := s.sourceID(r.URL.Query().Get("source"))
	if err != nil {
		return nil, err
	}
	if seq, err := strconv.ParseUint(word, 10, 64); err == nil && source == "" {
		m, err := s.b.Queue.Get(r.Context(), seq)
		if err == nil {
			return s.siblings(r.Context(), m, since)
		}
		if !errors.Is(err, queue.ErrMissing) {
			return nil, fmt.Errorf("find event: %w", err)
		}
	}
	if strings.HasPrefix(word, "evt_") && len(word) < minPrefix {
		return nil, &Error{CodeBadRequest, fmt.Sprintf("%q is too short", word), fmt.Sprintf("give at least %d characters of the id", minPrefix)}
	}
	f, err := s.scan(r.Context(), since, func(m *queue.Message) bool {
		if source != "" && source != m.Event.Source {
			return false
		}
		if strings.HasPrefix(word, "evt_") {
			return strings.HasPrefix(m.Event.ID(), word)
		}
		return m.Event.Identity.Is(word)
	})
	if err != nil {
		return nil, err
	}
	if f == nil {
		if err := s.purged(r.Context(), word); err != nil {
			return nil, err
		}
		return nil, &Error{
			CodeNotFound, fmt.Sprintf("no event %q was stored in the last %s", word, shortDuration(since)),
			"look further back with --since, or give its sequence from idemd events list",
		}
	}
	return f, nil
}

// purged says of a word that is the sequence of an event that was there once that
// it is gone; nil of any other.
func (s *Server) purged(ctx context.Context, word string) error {
	seq, err := strconv.ParseUint(word, 10, 64)
	if err != nil || seq == 0 {
		return nil
	}
	return s.stillHeld(ctx, seq)
}

// stillHeld says of a sequence before the oldest event that its event is gone.
func (s *Server) stillHeld(ctx context.Context, seq uint64) error {
	st, err := s.b.Queue.State(ctx)
	if err != nil {
		return fmt.Errorf("find event: %w", err)
	}
	if seq >= st.FirstSeq {
		return nil
	}
	return &Error{CodeNotFound, fmt.Sprintf("the queue no longer holds event %d: its oldest one is %d", seq, st.FirstSeq), purgedHint}
}

// siblings finds the other deliveries of m's event.
func (s *Server) siblings(ctx context.Context, m queue.Message, since time.Duration) (*found, error) {
	id := m.Event.ID()
	since = max(since, time.Since(m.Stored)+since)
	f, err := s.scan(ctx, since, func(o *queue.Message) bool { return o.Event.ID() == id })
	switch {
	case err != nil:
		return nil, err
	case f == nil:
		f = &found{deliveries: []queue.Message{m}, count: 1}
	}
	f.message = m
	return f, nil
}

// scan collects the events that match, all of one id. It returns nil when there
// is none, and an ambiguous error when there are several.
func (s *Server) scan(ctx context.Context, since time.Duration, match func(*queue.Message) bool) (*found, error) {
	oldest := time.Now().Add(-since)
	f, id := &found{}, ""
	err := s.b.Queue.Scan(ctx, 0, func(m queue.Message) (bool, error) {
		if m.Stored.Before(oldest) {
			f.partial = true
			return false, nil
		}
		if !match(&m) {
			return true, nil
		}
		if id == "" {
			id = m.Event.ID()
		}
		if other := m.Event.ID(); other != id {
			return false, &Error{CodeAmbiguous, fmt.Sprintf("more than one event fits: %s and %s", id, other), "give more of the id, --source, or the sequence"}
		}
		f.message = m
		m.Event.Body = nil
		f.count++
		if f.deliveries = append(f.deliveries, m); len(f.deliveries) > maxDeliveries {
			f.deliveries = f.deliveries[1:]
		}
		return true, nil
	})
	if err != nil {
		return nil, fmt.Errorf("find event: %w", err)
	}
	if id == "" {
		return nil, nil
	}
	slices.Reverse(f.deliveries)
	return f, nil
}

// shortDuration writes 24h instead of 24h0m0s.
func shortDuration(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
