package queue

import (
	"context"
	"sync"
	"sync/atomic"
)

// watermark is a sequence that only rises, and that can be waited for.
type watermark struct {
	seq    atomic.Uint64
	mu     sync.Mutex
	raised chan struct{} // closed at the next rise; nil while nobody waits
}

func (w *watermark) load() uint64 { return w.seq.Load() }

// raise lifts w to seq; a lower one changes nothing.
func (w *watermark) raise(seq uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if seq <= w.seq.Load() {
		return
	}
	w.seq.Store(seq)
	if w.raised != nil {
		close(w.raised)
		w.raised = nil
	}
}

// wait returns when w has reached seq. It returns ctx's error or ErrClosed when
// ctx ends or stop closes before.
func (w *watermark) wait(ctx context.Context, stop <-chan struct{}, seq uint64) error {
	for {
		raised := w.next(seq)
		if raised == nil {
			return nil
		}
		select {
		case <-raised:
		case <-ctx.Done():
			return ctx.Err()
		case <-stop:
			return ErrClosed
		}
	}
}

// next returns what closes at the next rise, nil when seq is reached.
func (w *watermark) next(seq uint64) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.seq.Load() >= seq {
		return nil
	}
	if w.raised == nil {
		w.raised = make(chan struct{})
	}
	return w.raised
}
