package consumer

import (
	"context"
	"sync"
	"time"
)

// The pauses after a claim store that did not answer.
const (
	firstPause = time.Second
	lastPause  = 30 * time.Second
)

// gate keeps a pool from taking work while the claim store does not answer. It
// opens by itself after a pause, which grows until the store answers.
type gate struct {
	now func() time.Time

	mu    sync.Mutex
	until time.Time // closed until then
	pause time.Duration
}

// shut closes the gate and reports whether it was open and well.
func (g *gate) shut() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.now().Before(g.until) {
		return false
	}
	first := g.pause == 0
	g.pause = min(max(2*g.pause, firstPause), lastPause)
	g.until = g.now().Add(g.pause)
	return first
}

// open says that the store answered; it reports whether it had not before.
func (g *gate) open() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	was := g.pause > 0
	g.until, g.pause = time.Time{}, 0
	return was
}

// hurry ends the pause: the next one to ask finds out whether the store answers.
func (g *gate) hurry() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.until = time.Time{}
	g.pause = min(g.pause, firstPause)
}

// closedFor is how long the gate stays closed; 0 when it is open.
func (g *gate) closedFor() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return max(0, g.until.Sub(g.now()))
}

// broken reports whether the store has not answered since the gate was shut.
func (g *gate) broken() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.pause > 0
}

// wait returns when the gate is open, or with ctx's error.
func (g *gate) wait(ctx context.Context) error {
	for {
		d := g.closedFor()
		if d == 0 {
			return ctx.Err()
		}
		if err := sleep(ctx, min(d, firstPause)); err != nil { // it may be opened meanwhile
			return err
		}
	}
}

// sleep waits for d, or returns ctx's error.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
