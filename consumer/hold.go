package consumer

import (
	"context"
	"sync"
	"time"
)

// How a handler is held.
const (
	holdAfter = 10               // different events that failed in a row
	tryEvery  = 30 * time.Second // while it is held, one event is tried
)

// hold keeps a handler from being given events: because it fails on all of them,
// or because somebody paused it. A held handler gets one event from time to time
// and goes on when that succeeds; a paused one gets none.
type hold struct {
	now   func() time.Time
	every time.Duration

	mu      sync.Mutex
	failed  map[string]struct{} // events that failed since the last one that did not, by the key's tuple
	held    time.Time           // since when; zero when it is not
	paused  time.Time           // since when; zero when it is not
	trial   time.Time           // when the next event may be tried
	trying  bool                // somebody has that event, or waits for one
	changed chan struct{}       // closed at the next change
}

func newHold(now func() time.Time) *hold {
	return &hold{now: now, every: tryEvery, failed: make(map[string]struct{}), changed: make(chan struct{})}
}

// pass says what a worker may take.
type pass uint8

const (
	nothing pass = iota
	anything
	oneTrial // one event; tried has to be called
)

// enter says what may be taken, until changed is closed. Where that is nothing,
// wait is the time until it is worth asking again; 0 when only a change ends it.
func (h *hold) enter() (may pass, wait time.Duration, changed <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch now := h.now(); {
	case !h.paused.IsZero():
		return nothing, 0, h.changed
	case h.held.IsZero():
		return anything, 0, h.changed
	case h.trying:
		return nothing, 0, h.changed
	case now.Before(h.trial):
		return nothing, h.trial.Sub(now), h.changed
	}
	h.trying = true
	return oneTrial, 0, h.changed
}

// tried ends a trial. One that reached the handler puts off the next.
func (h *hold) tried(reached bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.trying = false
	if reached {
		h.trial = h.now().Add(h.every)
	}
}

// note takes in how an attempt ended. It reports whether the handler is held
// from now on, or no longer. While it is held, only trials count: what began
// before says little about now. A Wait says that the handler is there, and
// nothing more.
func (h *hold) note(tuple string, class Class, trial bool) (held, released bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	isHeld := !h.held.IsZero()
	switch {
	case isHeld && !trial:
	case class == Done || class == Permanent:
		clear(h.failed)
		if isHeld {
			h.held = time.Time{}
			h.signal()
		}
		return false, isHeld
	case class == Wait || isHeld:
	default:
		h.failed[tuple] = struct{}{}
		if len(h.failed) >= holdAfter {
			h.held = h.now()
			h.trial = h.held.Add(h.every)
			h.signal()
			return true, false
		}
	}
	return false, false
}

// hurry lets a held handler be tried at once: it is not what it was.
func (h *hold) hurry() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.trial = h.now()
	h.signal()
}

// set pauses by hand, or ends every hold. It reports whether that changed
// anything.
func (h *hold) set(paused bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if paused == !h.paused.IsZero() && (paused || h.held.IsZero()) {
		return false
	}
	if h.paused = (time.Time{}); paused {
		h.paused = h.now()
	} else {
		h.held = time.Time{}
		clear(h.failed)
	}
	h.signal()
	return true
}

func (h *hold) signal() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// since gives when the handler was held, and when it was paused; zero when not.
func (h *hold) since() (held, paused time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.held, h.paused
}

// noted takes in an answer and tells people what follows from it.
func (p *Pool) noted(r *run, a Answer) {
	r.reached = true
	switch held, released := p.hold.note(r.key.Tuple, a.Class, r.trial); {
	case held:
		p.log.Error("handler is held: ten events in a row failed; one is tried every 30 s, the others stay queued",
			"reason", a.Reason.Code, "detail", a.Reason.Detail)
	case released:
		p.log.Warn("handler works again, it is no longer held")
	}
}

// Pause keeps the handler from being given events until Resume; running attempts
// end. Nothing queued uses up attempts. It ends with the pool.
func (p *Pool) Pause() {
	if p.hold.set(true) {
		p.face.Load().log.Warn("handler paused by hand")
	}
}

// Resume ends a pause, and the hold of a handler that failed.
func (p *Pool) Resume() {
	if p.hold.set(false) {
		p.face.Load().log.Warn("handler resumed by hand")
	}
}

// work is one worker. It asks for the next run only when it is free and the
// handler may be given one; of a delivery and a due run that wait both, either
// may come first.
func (p *Pool) work(taking, running context.Context) {
	for taking.Err() == nil {
		may, wait, changed := p.hold.enter()
		reached := p.take(taking, running, may, wait, changed)
		if may == oneTrial {
			p.hold.tried(reached)
		}
	}
}

// take takes what it may and runs it. It reports whether the handler was called.
func (p *Pool) take(taking, running context.Context, may pass, wait time.Duration, changed <-chan struct{}) bool {
	deliveries, due := p.deliveries, p.due
	if may == nothing {
		deliveries, due = nil, nil
	}
	var again <-chan time.Time
	if wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		again = t.C
	}
	select {
	case <-taking.Done():
	case <-changed:
	case <-again:
	case d := <-deliveries:
		reached := p.deliver(running, d, may == oneTrial)
		if !reached && p.spec.Matches(d.Event.Source, d.Event.Type) {
			p.pace.giveBack()
		}
		return reached
	case rec := <-due:
		reached := p.wake(running, &rec, may == oneTrial)
		if !reached {
			p.pace.giveBack()
		}
		return reached
	}
	return false
}
