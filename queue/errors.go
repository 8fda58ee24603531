package queue

import "errors"

var (
	// ErrFull is returned when the queue's disk budget is used up. Nothing was
	// stored, and nothing that was stored before is given up for it.
	ErrFull = errors.New("queue is full")

	// ErrUnavailable is returned when it is unknown whether an event is on stable
	// storage: the server did not answer in time, or a sync went wrong. The event
	// may be stored all the same.
	ErrUnavailable = errors.New("queue is unavailable")

	// ErrClosed is returned by everything after Close, and by Consumer.Next after
	// Stop.
	ErrClosed = errors.New("queue is closed")

	// ErrAbsent is returned by Open when there is no queue, or only a part of one,
	// though this is not the data directory's first start: it was lost or moved.
	ErrAbsent = errors.New("queue is missing")

	// ErrForeign is returned by Open when the queue was made for another data
	// directory, or for none.
	ErrForeign = errors.New("queue belongs to another data directory")

	// ErrDamaged is returned by Open when a file of the queue is not what was
	// written to it. Its text says which and where.
	ErrDamaged = errors.New("queue is damaged")

	// ErrMissing is returned when there is no such message.
	ErrMissing = errors.New("no such message")

	// ErrTooLarge is returned when an event with its headers is over MaxMessage.
	ErrTooLarge = errors.New("event is too large")

	// ErrFormat is returned when a stored message is not an event that this
	// version can read.
	ErrFormat = errors.New("not a stored event")
)
