package queue

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// life is one server on the directory and what belongs to it. A server that
// could not write, because the disk was full, never stores again: the queue goes
// on with another one and keeps its identity.
type life struct {
	srv    *server.Server
	pub    *nats.Conn // publishing and its acknowledgements
	read   *nats.Conn // everything else, so that bulk never delays an acknowledgement
	js     jetstream.JetStream
	events jetstream.Stream
	parked jetstream.Stream
}

// now is the present life, or the last one while there is none: then its
// connections are closed.
func (q *Queue) now() *life { return q.present.Load() }

// begin starts a server and gives the stream's last sequence. Everything that
// the directory holds is on stable storage when it returns.
func (q *Queue) begin(ctx context.Context) (l *life, last uint64, err error) {
	l = &life{}
	defer func() {
		if err != nil {
			l.end()
			l = nil
		}
	}()
	if err := dropConsumers(q.cfg.Dir); err != nil {
		return l, 0, err
	}
	if l.srv, err = startServer(q.cfg, q.always); err != nil {
		return l, 0, err
	}
	if l.pub, err = connect(l.srv, "publish", q.log); err != nil {
		return l, 0, err
	}
	if l.read, err = connect(l.srv, "read", q.log); err != nil {
		return l, 0, err
	}
	if l.js, err = jetstream.New(l.read); err != nil {
		return l, 0, fmt.Errorf("use jetstream: %w", err)
	}
	if l.events, l.parked, err = openStreams(ctx, l.js, q.cfg); err != nil {
		return l, 0, err
	}
	info, err := l.events.Info(ctx)
	if err != nil {
		return l, 0, fmt.Errorf("read state: %w", err)
	}
	if err := q.sync(); err != nil { // what a killed process wrote may still be in memory only
		return l, 0, &syncError{err}
	}
	return l, info.State.LastSeq, nil
}

// end takes down what is there. It may be called again.
func (l *life) end() {
	for _, nc := range []*nats.Conn{l.read, l.pub} {
		if nc != nil {
			nc.Close()
		}
	}
	if l.srv != nil {
		l.srv.Shutdown()
		l.srv.WaitForShutdown()
	}
}

// syncError is a sync of the file system that went wrong: not to be retried.
type syncError struct{ err error }

func (e *syncError) Error() string { return "sync: " + e.err.Error() }
func (e *syncError) Unwrap() error { return e.err }

// Restart ends the server and starts another one on the same directory, which is
// what lets the queue store again once a full disk has room. Meanwhile
// everything returns ErrUnavailable. Consumers stay as they are: they are made
// anew at their ConsumerConfig.Resume, so what was delivered and not settled
// comes again, and Next just waits. After an error the queue is down and Restart
// may be called again; but when the new server holds less than what was written,
// or the sync goes wrong, Failed yields that, too.
func (q *Queue) Restart(ctx context.Context) error {
	q.changing.Lock()
	defer q.changing.Unlock()
	select {
	case <-q.closing:
		return ErrClosed
	default:
	}
	if err := q.commit.failure(); err != nil {
		return err
	}
	q.down.Store(true)
	for _, c := range q.openConsumers() {
		c.interrupt()
	}
	q.now().end()
	if err := q.beginAnew(ctx); err != nil {
		return fmt.Errorf("restart queue: %w", err)
	}
	q.down.Store(false)
	return nil
}

func (q *Queue) beginAnew(ctx context.Context) error {
	l, last, err := q.begin(ctx)
	var unsynced *syncError
	switch {
	case errors.As(err, &unsynced):
		return q.commit.fail(err)
	case err != nil:
		return err
	}
	if written := q.commit.written.load(); last < written {
		l.end()
		return q.commit.fail(fmt.Errorf("the stream ends at event %d, and %d was written", last, written))
	}
	q.present.Store(l)
	q.commit.noteWritten(last)
	q.commit.durable.raise(last)
	if err := q.commit.use(l.pub); err != nil {
		return err
	}
	for _, c := range q.openConsumers() {
		c.interrupt() // one that was made meanwhile
		if err := c.resume(ctx); err != nil {
			return fmt.Errorf("create consumer of %s: %w", c.cfg.Handler, q.closedError(err))
		}
	}
	return nil
}
