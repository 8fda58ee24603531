package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"idemd/dedup"
	"idemd/event"
	"idemd/queue"
)

// choice is one chosen event at one handler that wants it.
type choice struct {
	handler Handler
	message queue.Message // its event is in the replay's batch
	key     event.Key     // under which the replay would run it
	own     *dedup.Record // of its ordinary run, or the dead letter; nil without one
	forced  *dedup.Record // of its run in the batch; nil without one
	skip    Skip
}

// begun reports whether the replay itself has written the choice's run, before a
// crash.
func (c *choice) begun(rp *Replay) bool {
	rec := c.own
	if rp.Request.Batch != "" {
		rec = c.forced
	}
	return rec != nil && rec.Origin == event.OriginReplay && rec.Seq == c.message.Seq && rec.FirstSeen >= dedup.At(rp.Created)
}

// planSlack is how long somebody may look at a plan before its bounds are refused.
// What is too old by then is left alone one by one.
const planSlack = time.Hour

// check completes a request: ids in place of names, and the bounds in time. It
// refuses what could not be told from what has run.
func (r *Replays) check(req ReplayRequest, now time.Time) (ReplayRequest, error) {
	var err error
	if req.Source, err = r.s.sourceID(req.Source); err != nil {
		return req, err
	}
	limit := time.Duration(0)
	if req.Handler != "" {
		h, err := r.s.handler(req.Handler)
		if err != nil {
			return req, err
		}
		req.Handler, limit = h.ID, h.replayLimit()
	} else {
		for _, h := range r.s.b.Handlers() {
			limit = max(limit, h.replayLimit())
		}
	}
	if req.Batch != "" {
		b, err := r.batches.find(req.Batch)
		if err != nil {
			return req, err
		}
		req.Batch = b.ID
	}
	if req.Until.IsZero() || req.Until.After(now) {
		req.Until = now
	}
	oldest := now.Add(-limit)
	if req.Since.IsZero() {
		req.Since = oldest
	}
	if req.Rate == 0 {
		req.Rate = DefaultRate
	}
	req.Since, req.Until = req.Since.UTC(), req.Until.UTC()
	switch {
	case req.Since.Before(oldest.Add(-planSlack)):
		return req, &Error{CodeRefused, fmt.Sprintf("events from before %s are older than the replay limit of %s: nobody can tell any more which of them have run",
			oldest.UTC().Format(time.RFC3339), shortDuration(limit)), "choose a later --since; [windows] replay_limit, and cold with it, can be raised for the future"}
	case !req.Since.Before(req.Until):
		return req, &Error{CodeBadRequest, "since is not before until: no event is between them", ""}
	case req.Reason != "" && !req.Dead:
		return req, &Error{CodeBadRequest, "a reason chooses among dead letters", "add --dead"}
	case req.Concurrent && req.Batch == "":
		return req, &Error{CodeBadRequest, "concurrent is for a run in a batch: without one nothing runs that runs already", "add --batch"}
	case !(req.Rate > 0 && req.Rate <= MaxRate):
		return req, &Error{CodeBadRequest, fmt.Sprintf("a rate of %g is not between 0 and %d", req.Rate, MaxRate), ""}
	}
	return req, nil
}

// bounds gives the first and the last sequence that the request can choose.
func (r *Replays) bounds(ctx context.Context, req *ReplayRequest) (from, to uint64, err error) {
	switch {
	case req.Dead:
		return 0, 0, nil
	case req.Seq != 0:
		return req.Seq, req.Seq, r.s.stillHeld(ctx, req.Seq)
	}
	if from, err = r.s.b.Queue.SeqAt(ctx, req.Since); err != nil {
		return 0, 0, err
	}
	to, err = r.s.b.Queue.SeqAt(ctx, req.Until)
	return from, to - min(to, 1), err
}

// chosen reports whether the request chooses an event that was stored at a time.
func (req *ReplayRequest) chosen(ev *event.Event, stored time.Time) bool {
	switch {
	case req.Source != "" && req.Source != ev.Source, !matchType(req.Type, ev.Type):
		return false
	case req.Seq != 0:
		return true
	}
	return !stored.Before(req.Since) && stored.Before(req.Until)
}

// wanting lists the handlers that the request is for and that want the event.
func (r *Replays) wanting(req *ReplayRequest, ev *event.Event) []Handler {
	var hs []Handler
	for _, h := range r.s.b.Handlers() {
		if (req.Handler == "" || req.Handler == h.ID) && h.Matches(ev.Source, ev.Type) {
			hs = append(hs, h)
		}
	}
	return hs
}

// look finds out what is known of an event at a handler, and decides.
func (r *Replays) look(ctx context.Context, req *ReplayRequest, h Handler, m queue.Message) (choice, error) {
	c := choice{handler: h, message: m}
	ev := m.Event
	own, mismatch, err := r.ownRecord(ctx, h.ID, &ev)
	if err != nil {
		return c, err
	}
	c.own, c.message.Event.Batch = own, req.Batch
	c.key = event.KeyFor(&c.message.Event, h.ID)
	if req.Batch != "" {
		if c.forced, err = r.record(ctx, c.key); err != nil {
			return c, err
		}
	}
	about := candidate{
		seq: m.Seq, age: r.now().Sub(m.Stored), limit: h.replayLimit(), progress: h.Progress(), unrunnable: h.Unrunnable(&ev),
		batch: req.Batch != "", concurrent: req.Concurrent, mismatch: mismatch, own: own, forced: c.forced,
	}
	c.skip = about.skips()
	return c, nil
}

// ownRecord gives the record of an event's ordinary run. Mismatch says that there
// is none because another payload has the event's identity.
func (r *Replays) ownRecord(ctx context.Context, handler string, ev *event.Event) (rec *dedup.Record, mismatch bool, err error) {
	rec, err = r.record(ctx, event.KeyFor(ev, handler))
	if err != nil || rec == nil || rec.Origin != ev.Origin || !rec.Fingerprint.Differs(ev.Fingerprint) {
		return rec, false, err
	}
	rec, err = r.record(ctx, event.MismatchKey(ev, handler))
	return rec, rec == nil, err
}

func (r *Replays) record(ctx context.Context, key event.Key) (*dedup.Record, error) {
	rec, found, err := r.s.b.Store.Get(ctx, key)
	if err != nil || !found {
		return nil, err
	}
	return &rec, nil
}

// lookDead finds out what is known of a dead letter, and decides.
func (r *Replays) lookDead(ctx context.Context, req *ReplayRequest, h Handler, rec *dedup.Record) (choice, error) {
	c := choice{handler: h, key: rec.Key, own: rec, message: queue.Message{Seq: rec.Seq}}
	if h.ID == "" {
		c.skip = SkipGone
		return c, nil
	}
	if r.now().Sub(rec.FirstSeen.Std()) > h.replayLimit() {
		c.skip = SkipTooOld
		return c, nil
	}
	m, err := r.s.eventOf(ctx, rec)
	if errors.Is(err, queue.ErrMissing) {
		c.skip = SkipMissing
		return c, nil
	}
	if err != nil {
		return c, err
	}
	c.message = m
	if req.Batch == "" {
		return c, nil
	}
	c.message.Event.Batch = req.Batch
	c.key = event.KeyFor(&c.message.Event, h.ID)
	if c.forced, err = r.record(ctx, c.key); err == nil && c.forced != nil {
		c.skip = SkipInBatch
	}
	return c, err
}

// deadLetters lists the dead letters that the request chooses and that were there
// at a time: one that is run again and fails is not chosen once more.
func (r *Replays) deadLetters(ctx context.Context, req *ReplayRequest, at time.Time) ([]dedup.Record, error) {
	var all []dedup.Record
	f := dedup.Filter{States: []dedup.State{dedup.Dead}, Handler: req.Handler, Reason: req.Reason}
	err := r.s.each(ctx, f, func(rec *dedup.Record) (bool, error) {
		ok, err := r.deadChosen(ctx, req, rec, at)
		if ok {
			all = append(all, *rec)
		}
		return true, err
	})
	return all, err
}

func (r *Replays) deadChosen(ctx context.Context, req *ReplayRequest, rec *dedup.Record, at time.Time) (bool, error) {
	parts, err := event.DecodeKey(rec.Key.Tuple)
	if err != nil {
		return false, fmt.Errorf("decode key of %s: %w", rec.Key.RunID(), err)
	}
	seen := rec.FirstSeen.Std()
	switch {
	case max(rec.FirstSeen, rec.Started) > dedup.At(at), seen.Before(req.Since), !seen.Before(req.Until),
		req.Source != "" && req.Source != parts.Source, req.Batch != "" && parts.Batch == req.Batch:
		return false, nil
	case req.Type == "":
		return true, nil
	}
	m, err := r.s.eventOf(ctx, rec)
	if errors.Is(err, queue.ErrMissing) {
		return false, nil
	}
	return err == nil && matchType(req.Type, m.Event.Type), err
}

// each calls fn for all that the request chooses and that was there at a time, from
// sequence from up to sequence to, the oldest first. Of stored events it calls
// passed after each, chosen or not.
func (r *Replays) each(ctx context.Context, req *ReplayRequest, at time.Time, from, to uint64, fn func(choice) error, passed func(seq uint64) error) error {
	if req.Dead {
		return r.eachDead(ctx, req, at, fn)
	}
	return r.s.b.Queue.Walk(ctx, from, to, func(m queue.Message) (bool, error) {
		if req.chosen(&m.Event, m.Stored) {
			for _, h := range r.wanting(req, &m.Event) {
				c, err := r.look(ctx, req, h, m)
				if errors.Is(err, dedup.ErrDamaged) {
					c.skip, err = SkipDamaged, nil
				}
				if err == nil {
					err = fn(c)
				}
				if err != nil {
					return false, err
				}
			}
		}
		return true, passed(m.Seq)
	})
}

func (r *Replays) eachDead(ctx context.Context, req *ReplayRequest, at time.Time, fn func(choice) error) error {
	all, err := r.deadLetters(ctx, req, at)
	if err != nil {
		return err
	}
	for i := range all {
		parts, err := event.DecodeKey(all[i].Key.Tuple)
		if err != nil {
			return err
		}
		h, err := r.s.handler(parts.Handler)
		if err != nil || h.ID != parts.Handler {
			h = Handler{Name: parts.Handler}
		}
		c, err := r.lookDead(ctx, req, h, &all[i])
		if err == nil {
			err = fn(c)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
