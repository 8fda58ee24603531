package queue

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"idemd/event"
)

// Park keeps a copy of ev for handler and key, apart from the stream and
// without an end. It returns when the copy is on stable storage; an earlier copy
// for the same handler and key is replaced. The errors are Publish's.
func (q *Queue) Park(ctx context.Context, handler string, key event.Key, ev *event.Event) error {
	msg, err := encode(ev)
	if err != nil {
		return fmt.Errorf("park event: %w", err)
	}
	msg.Subject = parkedSubject(handler, key)
	put(msg.Header, headerKey, encodeBytes([]byte(key.Tuple)))
	if _, err := q.commit.do(ctx, msg); err != nil {
		return fmt.Errorf("park event: %w", err)
	}
	q.cfg.Fault("after-park")
	return nil
}

// Parked returns the copy for handler and key; its Seq and Stored are the
// copy's own. It returns ErrMissing when there is none.
func (q *Queue) Parked(ctx context.Context, handler string, key event.Key) (Message, error) {
	m, err := q.readOne(ctx, streamParked, readRequest{Last: parkedSubject(handler, key)})
	if err != nil {
		return Message{}, fmt.Errorf("read parked event: %w", err)
	}
	if m.Header.Get(headerKey) != encodeBytes([]byte(key.Tuple)) { // another key of the same hash
		return Message{}, fmt.Errorf("read parked event: %w", ErrMissing)
	}
	msg, err := storedMessage(m)
	if err != nil {
		return Message{}, fmt.Errorf("read parked event: %w", err)
	}
	return msg, nil
}

// Unpark removes the copy for handler and key, if there is one. A power cut may
// bring it back, which does no harm: records say what is parked.
func (q *Queue) Unpark(ctx context.Context, handler string, key event.Key) error {
	_, err := q.Parked(ctx, handler, key)
	if errors.Is(err, ErrMissing) {
		return nil
	}
	if err != nil && !errors.Is(err, ErrFormat) {
		return fmt.Errorf("unpark event: %w", err)
	}
	if err := q.now().parked.Purge(ctx, jetstream.WithPurgeSubject(parkedSubject(handler, key))); err != nil {
		return fmt.Errorf("unpark event: %w", q.closedError(err))
	}
	q.commit.touch()
	return nil
}
