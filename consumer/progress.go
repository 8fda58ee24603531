package consumer

import (
	"context"
	"sync"
	"sync/atomic"

	"idemd/dedup"
)

// progress is what the store knows of how far the handler has come. It is not
// what the pool sees of it: a delivery that was lost on its way is seen by
// nobody here, and comes again only after AckWait, when later ones are settled
// long ago. The queue knows it, so the lower of the two is saved: the worst
// that a value that is too low can do is to have a duplicate suppressed.
type progress struct {
	mu    sync.Mutex    // held by save
	first uint64        // where the handler began
	saved atomic.Uint64 // every sequence up to here is settled
	risen chan struct{} // holds a token after the pool has come further
}

func newProgress(first, saved uint64) *progress {
	pr := &progress{first: first, risen: make(chan struct{}, 1)}
	pr.saved.Store(saved)
	return pr
}

func (pr *progress) rose() {
	select {
	case pr.risen <- struct{}{}:
	default:
	}
}

// Progress is how far the handler has come, as it is saved: a moment late.
func (p *Pool) Progress() dedup.Progress {
	return dedup.Progress{FirstSeq: p.progress.first, SettledTo: p.progress.saved.Load()}
}

// saveProgress saves the progress soon after it rose, and about once a second
// while the queue holds it back.
func (p *Pool) saveProgress(ctx context.Context) {
	for {
		select {
		case <-p.progress.risen:
		case <-ctx.Done():
			return
		}
		for pause := firstSave; ; pause = pollEvery {
			if sleep(ctx, pause) != nil {
				return
			}
			all, err := p.save(ctx)
			if err != nil && ctx.Err() == nil {
				p.obs.queueErrors.Add(1)
				p.log.Debug("progress not saved, trying again", "error", err)
			}
			if all {
				break
			}
		}
	}
}

// saveLast saves the progress when nothing runs any more. It waits a little for
// the last acks to count.
func (p *Pool) saveLast(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lastSave)
	defer cancel()
	for ctx.Err() == nil {
		all, err := p.save(ctx)
		if all || err != nil || sleep(ctx, saveStep) != nil {
			return
		}
	}
}

// save saves the progress as far as the queue confirms it, and reports whether
// that is all of it.
func (p *Pool) save(ctx context.Context) (all bool, err error) {
	p.progress.mu.Lock()
	defer p.progress.mu.Unlock()
	own := p.open.progress() // read before the queue is asked
	saved := p.progress.saved.Load()
	if own <= saved {
		return true, nil
	}
	floor, err := p.consumer.AckFloor(ctx)
	if err != nil {
		return false, err
	}
	if to := min(own, floor); to > saved {
		p.store.Settle(p.spec.ID, to)
		p.progress.saved.Store(to)
	}
	return floor >= own, nil
}
