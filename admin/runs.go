package admin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"idemd/dedup"
	"idemd/event"
	"idemd/queue"
)

// state is the records' state that a list shows.
func (l List) state() (dedup.State, error) {
	switch l {
	case DeadList:
		return dedup.Dead, nil
	case DoubtList:
		return dedup.InDoubt, nil
	}
	return 0, &Error{CodeNotFound, fmt.Sprintf("there is no list %q", l), "the lists are dead and doubt"}
}

// resolution is what as means for a run of the list.
func (l List) resolution(as Resolution) (dedup.Resolution, error) {
	switch {
	case as == AsRetry:
		return dedup.ResolveRetry, nil
	case as == AsDrop:
		return dedup.ResolveDrop, nil
	case as == AsDone && l == DoubtList:
		return dedup.ResolveDone, nil
	case as == AsDead && l == DoubtList:
		return dedup.ResolveBury, nil
	}
	return 0, &Error{CodeBadRequest, fmt.Sprintf("a run of the list %s cannot be resolved as %q", l, as),
		"dead letters: retry or drop; runs in doubt: done, retry, drop or dead"}
}

// run gives a record as people see it.
func (s *Server) run(rec *dedup.Record) (Run, error) {
	parts, err := event.DecodeKey(rec.Key.Tuple)
	if err != nil {
		return Run{}, fmt.Errorf("decode key of %s: %w", rec.Key.RunID(), err)
	}
	v := Run{
		ID: rec.Key.RunID(), EventID: parts.EventID(), Handler: parts.Handler, Source: parts.Source,
		PlatformID: parts.Identity.Text(), Tenant: parts.Identity.Tenant, Batch: parts.Batch, Mismatch: parts.Mismatch,
		DuplicateOf: parts.DuplicateOf,
		State:       rec.State, Reason: rec.Reason, Effect: rec.Effect, Fence: rec.Fence, Attempts: rec.Attempts,
		FirstSeen: rec.FirstSeen, Started: rec.Started, Due: rec.Due, Committed: rec.Committed, Expires: rec.Expires,
		Host: rec.Host, Origin: rec.Origin, Seq: rec.Seq, Parked: rec.Parked,
	}
	if rec.State == dedup.Done {
		v.Outcome = rec.Outcome.String()
	}
	if rec.State == dedup.Dead && s.b.Drops != nil {
		v.Drops = s.b.Drops(rec)
	}
	if h, err := s.handler(parts.Handler); err == nil {
		v.Handler = h.Name
	}
	return v, nil
}

// runsOf reads the filter of a request for a list.
func (s *Server) runsOf(r *http.Request) (List, dedup.Filter, error) {
	list := List(r.PathValue("list"))
	state, err := list.state()
	if err != nil {
		return "", dedup.Filter{}, err
	}
	q := r.URL.Query()
	f := dedup.Filter{States: []dedup.State{state}, Handler: q.Get("handler"), Reason: q.Get("reason")}
	if f.Handler != "" {
		if f.Handler, err = s.handlerID(f.Handler); err != nil {
			return "", dedup.Filter{}, err
		}
	}
	return list, f, nil
}

// handlerID gives the id of a handler. One that is no longer configured is known
// by its id, while it has open runs.
func (s *Server) handlerID(word string) (string, error) {
	if h, err := s.handler(word); err == nil {
		return h.ID, nil
	}
	open := s.b.Store.Stats().Open
	if _, found := open[word]; found {
		return word, nil
	}
	var known []string
	for _, h := range s.b.Handlers() {
		known = append(known, h.Name)
	}
	known = slices.AppendSeq(known, maps.Keys(open))
	return "", &Error{CodeNotFound, fmt.Sprintf("there is no handler %q", word), knownHint("handler", known)}
}

func (s *Server) listRuns(r *http.Request) (any, error) {
	limit, err := limitOf(r)
	if err != nil {
		return nil, err
	}
	_, f, err := s.runsOf(r)
	if err != nil {
		return nil, err
	}
	cursor := r.URL.Query().Get("cursor")
	if cursor != "" {
		if _, err := strconv.ParseUint(cursor, 10, 64); err != nil {
			return nil, badCursor(cursor)
		}
	}
	records, next, err := s.b.Store.List(r.Context(), f, cursor, limit)
	if err != nil {
		return nil, fmt.Errorf("list runs: %w", err)
	}
	page := Page[Run]{Items: []Run{}, Next: next}
	for i := range records {
		v, err := s.run(&records[i])
		if err != nil {
			return nil, err
		}
		page.Items = append(page.Items, v)
	}
	return page, nil
}

// each calls fn for every record that the filter chooses, until it returns false
// or an error. Changes that fn makes do not disturb it.
func (s *Server) each(ctx context.Context, f dedup.Filter, fn func(*dedup.Record) (bool, error)) error {
	cursor := ""
	for {
		records, next, err := s.b.Store.List(ctx, f, cursor, maxLimit)
		if err != nil {
			return fmt.Errorf("list runs: %w", err)
		}
		for i := range records {
			if goOn, err := fn(&records[i]); !goOn || err != nil {
				return err
			}
		}
		if next == "" {
			return nil
		}
		cursor = next
	}
}

// findRun gives the record of the list that a run_ id, or a unique beginning of
// one, names.
func (s *Server) findRun(r *http.Request, list List, f dedup.Filter) (*dedup.Record, error) {
	word := r.PathValue("run")
	if len(word) < minPrefix || !strings.HasPrefix(word, "run_") {
		return nil, &Error{CodeBadRequest, fmt.Sprintf("%q is not the id of a run", word),
			fmt.Sprintf("give run_... or at least its first %d characters", minPrefix)}
	}
	var rec *dedup.Record
	err := s.each(r.Context(), f, func(c *dedup.Record) (bool, error) {
		id := c.Key.RunID()
		if !strings.HasPrefix(id, word) {
			return true, nil
		}
		if rec != nil && rec.Key != c.Key { // one that changes between two pages is met twice
			return false, &Error{CodeAmbiguous, fmt.Sprintf("more than one run begins with %s", word), "give more of the id"}
		}
		rec = c
		return len(word) < len(id), nil
	})
	if err == nil && rec == nil {
		err = s.notListed(r.Context(), list, word)
	}
	return rec, err
}

// notListed says why no run with the id is on the list. Of one that is open the
// state is known; one that is done is not found by its id.
func (s *Server) notListed(ctx context.Context, list List, id string) error {
	told := &Error{CodeNotFound, fmt.Sprintf("no run %s is on the list %s", id, list),
		fmt.Sprintf("somebody may have decided about it already: idemd why EVENT tells what became of it; see idemd %s list", list)}
	err := s.each(ctx, dedup.Filter{}, func(rec *dedup.Record) (bool, error) {
		if rec.Key.RunID() != id {
			return true, nil
		}
		told = &Error{CodeConflict, fmt.Sprintf("the run %s is not on the list %s: it is %s", id, list, rec.State),
			"somebody decided about it, or it ran, since it was shown: idemd why EVENT tells"}
		return false, nil
	})
	if err != nil {
		return err
	}
	return told
}

func (s *Server) showRun(r *http.Request) (any, error) {
	list, f, err := s.runsOf(r)
	if err != nil {
		return nil, err
	}
	rec, err := s.findRun(r, list, f)
	if err != nil {
		return nil, err
	}
	v, err := s.run(rec)
	if err != nil {
		return nil, err
	}
	if s.b.Output != nil {
		if v.Output, err = s.b.Output(v.ID); err != nil {
			return nil, fmt.Errorf("read what the command said: %w", err)
		}
	}
	m, err := s.eventOf(r.Context(), rec)
	if errors.Is(err, queue.ErrMissing) {
		return v, nil
	}
	if err != nil {
		return nil, err
	}
	shown := s.view(m)
	v.Event = &shown
	parts, err := event.DecodeKey(rec.Key.Tuple)
	if err != nil {
		return nil, fmt.Errorf("decode key: %w", err)
	}
	why := s.b.Explain(r.Context(), parts.Handler, m, rec)
	v.Explanation = &why
	return v, nil
}

// eventOf gives the event that a run is about, or queue.ErrMissing.
func (s *Server) eventOf(ctx context.Context, rec *dedup.Record) (queue.Message, error) {
	parts, err := event.DecodeKey(rec.Key.Tuple)
	if err != nil {
		return queue.Message{}, fmt.Errorf("decode key: %w", err)
	}
	if rec.Parked {
		m, err := s.b.Queue.Parked(ctx, parts.Handler, rec.Key)
		if err == nil {
			m.Seq = rec.Seq
			return m, nil
		}
		if !errors.Is(err, queue.ErrMissing) {
			return queue.Message{}, fmt.Errorf("get parked event: %w", err)
		}
	}
	m, err := s.b.Queue.Get(ctx, rec.Seq)
	if err != nil {
		return queue.Message{}, fmt.Errorf("get event: %w", err)
	}
	m.Event.Batch = parts.Batch
	if !rec.Key.IsRunOf(&m.Event, parts.Handler) {
		return queue.Message{}, fmt.Errorf("sequence %d holds another event: %w", rec.Seq, queue.ErrMissing)
	}
	return m, nil
}

func (s *Server) resolveRun(r *http.Request) (any, error) {
	list, f, err := s.runsOf(r)
	if err != nil {
		return nil, err
	}
	var req Resolve
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	to, err := list.resolution(req.As)
	if err != nil {
		return nil, err
	}
	rec, err := s.findRun(r, list, f)
	if err != nil {
		return nil, err
	}
	if req.Fence != 0 {
		rec.Fence = req.Fence
	}
	after, err := s.resolve(r.Context(), rec, to, req.Note)
	if err != nil {
		return nil, err
	}
	return s.run(after)
}

func (s *Server) resolveAll(r *http.Request) (any, error) {
	list, f, err := s.runsOf(r)
	if err != nil {
		return nil, err
	}
	var req Resolve
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	to, err := list.resolution(req.As)
	if err != nil {
		return nil, err
	}
	// The list is taken first: a run that is retried and fails at once must not
	// come again within this call.
	var all []dedup.Record
	err = s.each(r.Context(), f, func(rec *dedup.Record) (bool, error) {
		all = append(all, *rec)
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	var sum Resolved
	for i := range all {
		switch _, err := s.resolve(r.Context(), &all[i], to, req.Note); {
		case errors.Is(err, dedup.ErrFenced):
			sum.Conflicts++
		case err != nil:
			return nil, fmt.Errorf("after %d runs were resolved: %w", sum.Resolved, err)
		default:
			sum.Resolved++
		}
	}
	return sum, nil
}

// resolve settles rec, as it was shown, by a person's word.
func (s *Server) resolve(ctx context.Context, rec *dedup.Record, to dedup.Resolution, note string) (*dedup.Record, error) {
	parts, err := event.DecodeKey(rec.Key.Tuple)
	if err != nil {
		return nil, fmt.Errorf("decode key: %w", err)
	}
	configured := slices.ContainsFunc(s.b.Handlers(), func(h Handler) bool { return h.ID == parts.Handler })
	if to == dedup.ResolveRetry && !configured {
		return nil, &Error{CodeConflict, fmt.Sprintf("no handler with the id %q is configured: nobody would run it", parts.Handler),
			"configure the handler first (with that id), or drop the run"}
	}
	res, err := s.b.Store.Do(ctx, rec.Key, dedup.Resolve{
		Fence: rec.Fence, To: to, Retain: s.retain(parts.Handler),
		Reason: dedup.Reason{Code: dedup.ReasonOperator, Detail: decision(note, rec.Reason)},
	})
	if err != nil {
		return nil, fmt.Errorf("resolve run: %w", err)
	}
	if res.Fenced {
		return nil, fmt.Errorf("resolve run: %w", dedup.ErrFenced)
	}
	s.b.Logger.Info("run resolved by operator", "run_id", rec.Key.RunID(), "handler", parts.Handler,
		"from", rec.State.String(), "to", res.Record.State.String())
	if res.Record.State == dedup.Done && rec.Parked {
		if err := s.b.Queue.Unpark(ctx, parts.Handler, rec.Key); err != nil {
			s.b.Logger.Warn("copy of a settled event stays", "run_id", rec.Key.RunID(), "error", err)
		}
	}
	return &res.Record, nil
}

// retain is for how long a settled run of the handler is kept; for one that is
// no longer configured, the longest of the others'.
func (s *Server) retain(handler string) time.Duration {
	var d time.Duration
	for _, h := range s.b.Handlers() {
		if h.ID == handler {
			return h.Retain
		}
		d = max(d, h.Retain)
	}
	return d
}

// decision is the text of somebody's decision: their note, and what it was about.
func decision(note string, was dedup.Reason) string {
	text := was.Code
	if was.Detail != "" {
		text += ": " + was.Detail
	}
	switch {
	case text == "":
		text = note
	case note == "":
		text = "was: " + text
	default:
		text = note + " (was: " + text + ")"
	}
	return cut(text, dedup.MaxDetail)
}

// cut shortens a text to n bytes, at the end of a character.
func cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n], "")
}
