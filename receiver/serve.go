package receiver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
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
	firstRead    = 64 << 10                // bytes to make room for at first
)

// refusal is the body of every answer to a request that is not taken, whatever
// was wrong with it.
const refusal = "refused\n"

// post takes one event.
func (rc *Receiver) post(s *source, w http.ResponseWriter, r *http.Request) {
	arrived := time.Now()
	slot := &rc.inFlight
	reason := rc.admit()
	if reason != "" {
		slot = rc.toHold(s, reason, w)
		if slot == nil {
			return
		}
	}
	defer func() { slot.Add(-1) }()

	opened, err := rc.open(s, w, r)
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
		held := rc.toHold(s, reason, w)
		if held == nil {
			return
		}
		slot.Add(-1)
		slot = held
	}
	if !rc.hold(ctx, r.Context(), &opened.Event) {
		rc.abort(s, reason) // does not return
	}
	rc.accept(s, w, &opened)
}

// admit takes a place among the requests in flight, or says why there is none.
func (rc *Receiver) admit() Reason {
	switch rc.State() {
	case StateReady:
	case StateBlocked:
		return ReasonBlocked
	case StateDraining:
		return ReasonDraining
	default:
		return ReasonStarting
	}
	if !take(&rc.inFlight, int64(rc.cfg.InFlight)) {
		return ReasonInFlight
	}
	return ""
}

func take(n *atomic.Int64, limit int64) bool {
	if n.Add(1) > limit {
		n.Add(-1)
		return false
	}
	return true
}

// toHold refuses a request in the source's way. It returns where the request
// has taken a place if it is to be held, nil if it has been answered, and does
// not return if the connection is closed.
func (rc *Receiver) toHold(s *source, reason Reason, w http.ResponseWriter) *atomic.Int64 {
	if !s.hold {
		s.refuse(reason)
		w.Header().Set("Retry-After", retryAfter)
		writeText(w, http.StatusServiceUnavailable, refusal)
		return nil
	}
	if !take(&s.holding, maxHeld) {
		rc.abort(s, reason)
	}
	return &s.holding
}

// abort closes the connection without an answer.
func (rc *Receiver) abort(s *source, reason Reason) {
	s.refuse(reason)
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

// open reads a request, has the scheme open it and completes the event.
func (rc *Receiver) open(s *source, w http.ResponseWriter, r *http.Request) (Opened, error) {
	body, err := readBody(w, r, s.maxBody, rc.cfg.ReadTimeout)
	if err != nil {
		return Opened{}, err
	}
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

// readBody reads at most limit bytes within timeout.
func readBody(w http.ResponseWriter, r *http.Request, limit int64, timeout time.Duration) ([]byte, error) {
	if r.ContentLength > limit {
		w.Header().Set("Connection", "close")
		return nil, fmt.Errorf("read body: %w", ErrTooLarge)
	}
	control := http.NewResponseController(w)
	if err := control.SetReadDeadline(time.Now().Add(timeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return nil, fmt.Errorf("set read deadline: %w", err)
	}
	// What a header announces is not believed: the buffer grows with what comes.
	buf := bytes.NewBuffer(make([]byte, 0, min(max(r.ContentLength, 0), firstRead)+bytes.MinRead))
	_, err := buf.ReadFrom(http.MaxBytesReader(w, r.Body, limit))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, fmt.Errorf("read body: %w", ErrTooLarge)
	case errors.Is(err, os.ErrDeadlineExceeded):
		w.Header().Set("Connection", "close")
		return nil, fmt.Errorf("read body: %w", ErrSlow)
	case err != nil:
		return nil, malformed("read body: ends early")
	}
	// net/http goes on reading to notice that the caller hangs up; the deadline
	// would look like that and end a held request.
	if err := control.SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return nil, fmt.Errorf("clear read deadline: %w", err)
	}
	return buf.Bytes(), nil
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
