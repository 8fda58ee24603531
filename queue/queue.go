// Package queue is the durable queue: an embedded NATS server with JetStream,
// whose acknowledgements are made good by one sync of the file system for a
// whole group of events (see Publish). It is the only package that knows NATS.
package queue

import (
	"context"
	"log/slog"
	"time"

	"idemd/event"
)

// MaxMessage is the largest stored event in bytes, its headers included.
const MaxMessage = 4 << 20

// DefaultPublishTimeout is how long Publish waits for the server.
const DefaultPublishTimeout = 2 * time.Second

// Config says where the queue lives and how much it may hold.
type Config struct {
	Dir            string             // directory of its own; made if it is not there
	MaxBytes       int64              // disk budget of the events; parked copies have their own, a quarter of it
	PublishTimeout time.Duration      // DefaultPublishTimeout when zero
	Logger         *slog.Logger       // slog.Default when nil
	Fault          func(point string) // crash points for tests; nil in production
}

// Queue is an open queue. Its methods may be called from many goroutines.
type Queue struct {
	failed chan error
}

// Message is an event with its place in the queue.
type Message struct {
	Seq    uint64    // stream sequence
	Stored time.Time // when it was stored, wall clock, UTC
	Event  event.Event
}

// State is a picture of the queue.
type State struct {
	FirstSeq uint64 // of the oldest event that is kept; last + 1 when there is none
	LastSeq  uint64 // of the newest event
	Durable  uint64 // every event up to here survives a power cut
	Messages uint64 // events kept
	Bytes    uint64 // what they take on disk
	Parked   uint64 // parked copies
	Foreign  uint64 // stored messages met by this process that are no events
}

// Open starts the server in cfg.Dir and returns when what the directory holds
// is on stable storage.
func Open(ctx context.Context, cfg Config) (*Queue, error) { return nil, ErrUnavailable }

// Publish stores ev and returns its stream sequence.
func (q *Queue) Publish(ctx context.Context, ev *event.Event) (uint64, error) {
	return 0, ErrUnavailable
}

// Get returns the message at seq, or ErrMissing.
func (q *Queue) Get(ctx context.Context, seq uint64) (Message, error) { return Message{}, ErrMissing }

// Park keeps a copy of ev for handler and key. It returns when the copy is on
// stable storage; an earlier copy for the same handler and key is replaced.
func (q *Queue) Park(ctx context.Context, handler string, key event.Key, ev *event.Event) error {
	return ErrUnavailable
}

// Parked returns the copy for handler and key, or ErrMissing.
func (q *Queue) Parked(ctx context.Context, handler string, key event.Key) (Message, error) {
	return Message{}, ErrMissing
}

// Unpark removes the copy for handler and key, if there is one.
func (q *Queue) Unpark(ctx context.Context, handler string, key event.Key) error { return nil }

// State returns a picture of the queue.
func (q *Queue) State(ctx context.Context) (State, error) { return State{}, ErrUnavailable }

// Scan calls fn for the durable messages from sequence from (0: the newest)
// down to the oldest, until fn returns false or an error.
func (q *Queue) Scan(ctx context.Context, from uint64, fn func(Message) (bool, error)) error {
	return ErrUnavailable
}

// Tail calls fn for every message that becomes durable from now on, in order,
// until ctx ends.
func (q *Queue) Tail(ctx context.Context, fn func(Message) error) error { return ErrUnavailable }

// Failed yields the error of a sync that went wrong.
func (q *Queue) Failed() <-chan error { return q.failed }

// Delete removes a handler's consumer, if there is one.
func (q *Queue) Delete(ctx context.Context, handler string) error { return ErrUnavailable }

// Consumers returns the ids of the handlers that have a consumer.
func (q *Queue) Consumers(ctx context.Context) ([]string, error) { return nil, ErrUnavailable }

// Close stops the queue.
func (q *Queue) Close(ctx context.Context) error { return nil }
