package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"idemd/event"
)

// No test here runs in parallel: the server keeps one ticker per process, which
// must not be shared between a synctest bubble and the outside.
func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		os.Exit(crashChild(dir))
	}
	if dir := os.Getenv(purgeChildEnv); dir != "" {
		os.Exit(purgeChild(dir))
	}
	goleak.VerifyTestMain(m)
}

const testBudget = 64 << 20

// watch counts the syncs of a queue and can hold them up or let them fail.
type watch struct {
	syncs  atomic.Int64
	before func() error // runs before each sync when not nil; its error is the sync's
	mu     sync.Mutex
}

func (w *watch) set(before func() error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.before = before
}

func (w *watch) wrap(sync func() error) func() error {
	return func() error {
		w.mu.Lock()
		before := w.before
		w.mu.Unlock()
		if before != nil {
			if err := before(); err != nil {
				return err
			}
		}
		w.syncs.Add(1)
		return sync()
	}
}

// wrapped makes a queue sync through wrap.
func wrapped(wrap func(sync func() error) func() error) func(*os.File) (func() error, error) {
	return func(dir *os.File) (func() error, error) {
		sync, err := groupSync(dir)
		if err != nil {
			return nil, err
		}
		if sync == nil { // the server syncs every message itself
			sync = func() error { return nil }
		}
		return wrap(sync), nil
	}
}

// logOf gives a logger whose warnings and errors fail the test, except those
// that contain one of the texts.
func logOf(t testing.TB, expected ...string) *slog.Logger {
	return slog.New(slog.NewTextHandler(lineFunc(func(line string) {
		for _, text := range expected {
			if strings.Contains(line, text) {
				return
			}
		}
		t.Errorf("unexpected log: %s", line)
	}), &slog.HandlerOptions{Level: slog.LevelWarn}))
}

type lineFunc func(string)

func (f lineFunc) Write(p []byte) (int, error) {
	f(string(p))
	return len(p), nil
}

// open opens a queue that is closed at the end of the test.
func open(t testing.TB, cfg Config) *Queue {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = testBudget
	}
	if cfg.Logger == nil {
		cfg.Logger = logOf(t)
	}
	q, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeQueue(t, q) })
	return q
}

func closeQueue(t testing.TB, q *Queue) {
	t.Helper()
	if err := q.Close(context.Background()); err != nil {
		t.Errorf("close: %v", err)
	}
}

func newEvent(i int) *event.Event {
	return &event.Event{
		Source: "wecom", Type: "change_contact.create_user",
		Identity: event.NewIdentity("corp", event.KindPlatform, "", fmt.Sprintf("id-%d", i+1)),
		Received: time.Unix(1_700_000_000+int64(i), 123).UTC(),
		Origin:   event.OriginCallback, ContentType: "application/json",
		Body: fmt.Appendf(nil, `{"n":%d}`, i),
	}
}

func publish(t testing.TB, q *Queue, ev *event.Event) uint64 {
	t.Helper()
	seq, err := q.Publish(t.Context(), ev)
	if err != nil {
		t.Fatal(err)
	}
	return seq
}

func publishN(t testing.TB, q *Queue, n int) {
	t.Helper()
	for i := range n {
		publish(t, q, newEvent(i))
	}
}

func consume(t testing.TB, q *Queue, cfg ConsumerConfig) *Consumer {
	t.Helper()
	if cfg.Handler == "" {
		cfg.Handler = "crm"
	}
	c, err := q.Consume(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func next(t testing.TB, c *Consumer) *Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	d, err := c.Next(ctx)
	if err != nil {
		t.Fatalf("next: %v", err)
	}
	return d
}

func ack(t testing.TB, d *Delivery) {
	t.Helper()
	if err := d.Ack(); err != nil {
		t.Fatal(err)
	}
}

// store puts a message into the stream behind the queue's back: nobody sees
// its acknowledgement.
func store(t testing.TB, q *Queue, msg *nats.Msg) {
	t.Helper()
	if err := errors.Join(q.now().read.PublishMsg(msg), flush(t, q.now().read)); err != nil {
		t.Fatal(err)
	}
}

// flush is Flush without the timers that the client shares between all of its
// connections: those must not travel between synctest bubbles.
func flush(t testing.TB, nc *nats.Conn) error {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	return nc.FlushWithContext(ctx)
}

func encoded(t testing.TB, ev *event.Event) *nats.Msg {
	t.Helper()
	msg, err := encode(ev)
	if err != nil {
		t.Fatal(err)
	}
	msg.Subject = eventSubject(ev)
	return msg
}
