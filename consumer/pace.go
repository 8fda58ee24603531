package consumer

import (
	"context"
	"sync"
	"time"
)

// paceSlack is how much a pool that came late may catch up on, so that high
// rates do not suffer from coarse timers.
const paceSlack = 20 * time.Millisecond

// pace keeps events at a distance from each other. Its zero value knows none.
type pace struct {
	now   func() time.Time
	every time.Duration // between two events; 0: they need none

	mu   sync.Mutex
	next time.Time // the place of the next event
}

func newPace(now func() time.Time, perSecond float64) *pace {
	p := &pace{now: now}
	if perSecond > 0 {
		p.every = time.Duration(float64(time.Second) / perSecond)
	}
	return p
}

// wait takes the next place and returns when its time has come, or with ctx's
// error.
func (p *pace) wait(ctx context.Context) error {
	if p.every == 0 {
		return ctx.Err()
	}
	p.mu.Lock()
	now := p.now()
	if earliest := now.Add(-paceSlack); p.next.Before(earliest) {
		p.next = earliest
	}
	d := p.next.Sub(now)
	p.next = p.next.Add(p.every)
	p.mu.Unlock()
	if d <= 0 {
		return ctx.Err()
	}
	return sleep(ctx, d)
}

// giveBack returns a place that was not needed.
func (p *pace) giveBack() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next = p.next.Add(-p.every)
}
