package queue

import (
	"context"
	"fmt"
	"time"
)

// Walk calls fn for the durable messages from sequence from up to sequence to,
// the oldest first, until fn returns false or an error, which Walk returns.
// Messages that are no events are left out and counted in State.Foreign. What
// becomes durable meanwhile is met if to lets it.
func (q *Queue) Walk(ctx context.Context, from, to uint64, fn func(Message) (bool, error)) error {
	for next := max(from, 1); next <= min(to, q.commit.durable.load()); {
		hi := min(to, q.commit.durable.load())
		msgs, more, err := q.readChunk(ctx, next, int(min(hi-next+1, maxChunk)))
		if err != nil {
			return fmt.Errorf("walk queue: %w", err)
		}
		goOn := true
		last, err := q.forwards(msgs, hi, func(m Message) (err error) {
			if goOn {
				goOn, err = fn(m)
			}
			return err
		})
		if err != nil || !goOn {
			return err
		}
		if len(msgs) == 0 || !more && last < next {
			return nil // what was there is purged
		}
		next = last + 1
	}
	return nil
}

// SeqAt gives the lowest durable sequence that was stored at t or later, one past
// the last durable one when there is none. Where the clock was put back between
// two messages, it may be a later one.
func (q *Queue) SeqAt(ctx context.Context, t time.Time) (uint64, error) {
	st, err := q.State(ctx)
	if err != nil {
		return 0, fmt.Errorf("find time in queue: %w", err)
	}
	lo, hi := max(st.FirstSeq, 1), st.Durable+1
	for lo < hi {
		mid := lo + (hi-lo)/2
		stored, seq, err := q.storedFrom(ctx, mid)
		switch {
		case err != nil:
			return 0, fmt.Errorf("find time in queue: %w", err)
		case seq == 0 || seq >= hi || !stored.Before(t):
			hi = mid
		default:
			lo = seq + 1
		}
	}
	return lo, nil
}

// storedFrom gives the first message at seq or after it; 0 when there is none.
func (q *Queue) storedFrom(ctx context.Context, seq uint64) (time.Time, uint64, error) {
	msgs, _, err := q.readChunk(ctx, seq, 1)
	if err != nil || len(msgs) == 0 {
		return time.Time{}, 0, err
	}
	at, err := storedSeq(msgs[0])
	if err != nil {
		return time.Time{}, 0, err
	}
	stored, err := time.Parse(time.RFC3339Nano, msgs[0].Header.Get(headerStored))
	return stored, at, err
}
