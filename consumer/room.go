package consumer

import "context"

// Room reports whether the handler could run one more event at once: it is given
// events, no live one waits for it, and a worker is free. What can wait asks this
// before it adds to the handler's work.
func (p *Pool) Room(ctx context.Context) bool {
	if held, paused := p.hold.since(); !held.IsZero() || !paused.IsZero() || p.gate.broken() {
		return false
	}
	face := p.face.Load()
	if face.lanes.waiting() >= face.concurrency {
		return false // more would only wait, each with a record
	}
	if p.obs.inFlight.Load() >= int64(face.concurrency) {
		return false
	}
	pending, err := p.Pending(ctx)
	return err == nil && pending == 0
}
