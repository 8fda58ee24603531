package receiver

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"idemd/event"
)

const (
	answerWithin = 4500 * time.Millisecond // from arrival; platforms give up at 5 s
	holdRetry    = 100 * time.Millisecond  // between attempts to store a held event
	maxHeld      = 256                     // requests of one source
	retryAfter   = "5"                     // seconds
)

// refusal is the body of every answer to a request that is not taken, whatever
// was wrong with it.
const refusal = "refused\n"

// post takes one event. A place in flight is for requests that are all here, so
// that nobody can keep one by sending slowly.
func (rc *Receiver) post(s *source, w http.ResponseWriter, r *http.Request) {
	arrived := time.Now()
	reason := rc.unready()
	if reason != "" && !s.hold {
		rc.refuse(s, reason, w)
		return
	}
	if ch, ok := s.scheme.(HeaderChecker); ok {
		if err := ch.CheckHeader(r.Header, rc.cfg.Now()); err != nil {
			rc.reject(s, w, err)
			return
		}
	}
	b := body{used: &rc.bodies}
	defer b.release()
	switch err := rc.readBody(s, &b, w, r); {
	case errors.Is(err, errNoRoom):
		rc.refuse(s, ReasonReading, w)
		return
	case err != nil:
		rc.reject(s, w, err)
		return
	}
	var at place
	defer at.leave()
	if reason == "" && !at.enter(&rc.inFlight, int64(rc.cfg.InFlight)) {
		reason = ReasonInFlight
		if !s.hold {
			rc.refuse(s, reason, w)
			return
		}
	}
	opened, err := rc.open(s, r, b.bytes)
	if err != nil {
		rc.reject(s, w, err)
		return
	}
	// Who hung up still gets the event stored: it is authentic and here.
	ctx, cancel := context.WithDeadline(context.WithoutCancel(r.Context()), arrived.Add(answerWithin))
	defer cancel()
	if reason == "" {
		err := rc.cfg.Publish(ctx, &opened.Event)
		if err == nil {
			rc.accept(s, w, &opened)
			return
		}
		rc.warn(s, "publish failed", slog.String("error", err.Error()))
		reason = ReasonPublish
	}
	if !s.hold || !at.enter(&s.holding, maxHeld) {
		rc.refuse(s, reason, w)
		return
	}
	b.release() // held requests have a bound of their own
	if !rc.hold(ctx, r.Context(), &opened.Event) {
		rc.abort(s, reason, w) // does not return
	}
	rc.accept(s, w, &opened)
}

// unready says why no events are taken, if so.
func (rc *Receiver) unready() Reason {
	switch rc.State() {
	case StateReady:
		return ""
	case StateBlocked:
		return ReasonBlocked
	case StateDraining:
		return ReasonDraining
	default:
		return ReasonStarting
	}
}

// place is where a request is counted; the zero value is nowhere.
type place struct{ count *atomic.Int64 }

// enter moves the request to another place, if there is room.
func (p *place) enter(count *atomic.Int64, limit int64) bool {
	if !take(count, 1, limit) {
		return false
	}
	p.leave()
	p.count = count
	return true
}

func (p *place) leave() {
	if p.count != nil {
		p.count.Add(-1)
		p.count = nil
	}
}

// refuse ends a request that is not taken, for a reason that lies with us, in
// the source's way. It does not return if that is to close the connection.
func (rc *Receiver) refuse(s *source, reason Reason, w http.ResponseWriter) {
	if s.hold {
		rc.abort(s, reason, w)
	}
	s.refuse(reason)
	rc.dropRest(w, drainFor)
	w.Header().Set("Retry-After", retryAfter)
	writeText(w, http.StatusServiceUnavailable, refusal)
}

// abort closes the connection without an answer.
func (rc *Receiver) abort(s *source, reason Reason, w http.ResponseWriter) {
	s.refuse(reason)
	rc.dropRest(w, 0)
	// This value is how net/http is told to; it is no failure.
	panic(http.ErrAbortHandler)
}

// hold tries to store an event until ctx ends or the caller hangs up, and
// reports whether it did.
func (rc *Receiver) hold(ctx, caller context.Context, ev *event.Event) bool {
	tick := time.NewTicker(holdRetry)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-caller.Done():
			return false
		case <-tick.C:
		}
		if rc.State() == StateReady && rc.cfg.Publish(ctx, ev) == nil {
			return true
		}
	}
}

// open has the scheme open a request and completes the event.
func (rc *Receiver) open(s *source, r *http.Request, body []byte) (Opened, error) {
	now := rc.cfg.Now()
	opened, err := s.scheme.Open(&Request{Method: r.Method, RawQuery: r.URL.RawQuery, Header: r.Header, Body: body}, now)
	if err != nil {
		return Opened{}, err
	}
	ev := &opened.Event
	ev.Source, ev.Origin, ev.Received = s.id, event.OriginCallback, now
	if ev.Fingerprint.IsZero() && ev.Identity.Kind != event.KindUnkeyed {
		ev.Fingerprint = s.rules.Of(ev.Body)
	}
	return opened, nil
}

// challenge answers the verification of a callback URL, in every state.
func (rc *Receiver) challenge(s *source, ch Challenger, w http.ResponseWriter, r *http.Request) {
	reply, err := ch.Challenge(&Request{Method: r.Method, RawQuery: r.URL.RawQuery, Header: r.Header}, rc.cfg.Now())
	if err != nil {
		rc.reject(s, w, err)
		return
	}
	s.challenges.Add(1)
	writeReply(w, reply)
}

func (rc *Receiver) accept(s *source, w http.ResponseWriter, opened *Opened) {
	s.accept(&opened.Event)
	s.secrets[min(opened.SecretIndex, len(s.secrets)-1)].Add(1)
	if len(opened.Repeats) > 0 {
		for _, path := range s.repeat(opened.Repeats) {
			rc.cfg.Logger.Warn("element repeats without being declared to", "source", s.id, "path", path)
		}
	}
	writeReply(w, opened.Reply)
}

// reject answers a request that is not good. The answer does not tell why; the
// log does.
func (rc *Receiver) reject(s *source, w http.ResponseWriter, err error) {
	status, reason := classify(err)
	s.refuse(reason)
	if reason == ReasonSlow {
		rc.dropRest(w, 0)
	} else {
		rc.dropRest(w, drainFor)
	}
	rc.warn(s, "request rejected", slog.Int("status", status), slog.String("error", err.Error()))
	writeText(w, status, refusal)
}

func classify(err error) (status int, reason Reason) {
	switch {
	case errors.Is(err, ErrAuth):
		return http.StatusUnauthorized, ReasonAuth
	case errors.Is(err, ErrTooLarge):
		return http.StatusRequestEntityTooLarge, ReasonTooLarge
	case errors.Is(err, ErrSlow):
		return http.StatusBadRequest, ReasonSlow
	}
	return http.StatusBadRequest, ReasonMalformed
}

func (rc *Receiver) warn(s *source, msg string, attrs ...any) {
	if ok, skipped := s.logged.allow(time.Now()); ok {
		rc.cfg.Logger.With("source", s.id, "skipped", skipped).Warn(msg, attrs...)
	}
}

func writeReply(w http.ResponseWriter, reply Reply) {
	h := w.Header()
	if reply.ContentType != "" {
		h.Set("Content-Type", reply.ContentType)
		h.Set("X-Content-Type-Options", "nosniff")
	}
	h.Set("Content-Length", strconv.Itoa(len(reply.Body)))
	w.WriteHeader(http.StatusOK)
	write(w, reply.Body)
}

func writeText(w http.ResponseWriter, status int, text string) {
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	write(w, []byte(text))
}

func write(w http.ResponseWriter, body []byte) {
	if _, err := w.Write(body); err != nil {
		return // the caller is gone; there is nobody to tell
	}
}
