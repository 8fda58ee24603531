package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
)

// inBubble runs f with a queue in virtual time.
func inBubble(t *testing.T, f func(t *testing.T, q *Queue)) {
	synctest.Test(t, func(t *testing.T) {
		q := open(t, Config{})
		f(t, q)
		closeQueue(t, q)
	})
}

// nextWithin returns the next delivery, nil when there is none for so long.
func nextWithin(t testing.TB, c *Consumer, d time.Duration) *Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	got, err := c.Next(ctx)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	return got
}

func TestConsumer_UnsettledDeliveryComesAgainAfterAckWait(t *testing.T) {
	inBubble(t, func(t *testing.T, q *Queue) {
		c := consume(t, q, ConsumerConfig{})
		publish(t, q, newEvent(0))
		if d := next(t, c); d.Redelivered {
			t.Error("first delivery is marked as redelivered")
		}
		if d := nextWithin(t, c, DefaultAckWait-time.Second); d != nil {
			t.Error("came again before AckWait")
		}
		d := nextWithin(t, c, 2*time.Second)
		if d == nil || !d.Redelivered || d.Seq != 1 {
			t.Fatalf("after AckWait: %+v", d)
		}
		ack(t, d)
		if d := nextWithin(t, c, 10*time.Minute); d != nil {
			t.Error("came again after its ack")
		}
	})
}

func TestConsumer_InProgressLetsAckWaitBeginAnew(t *testing.T) {
	inBubble(t, func(t *testing.T, q *Queue) {
		c := consume(t, q, ConsumerConfig{})
		publish(t, q, newEvent(0))
		d := next(t, c)
		for range 5 {
			if again := nextWithin(t, c, DefaultAckWait-10*time.Second); again != nil {
				t.Fatal("came again although in progress")
			}
			if err := d.InProgress(); err != nil {
				t.Fatal(err)
			}
		}
		if again := nextWithin(t, c, DefaultAckWait+time.Second); again == nil {
			t.Error("did not come again")
		}
	})
}

func TestConsumer_PrefetchedDeliveriesDoNotRunOut(t *testing.T) {
	inBubble(t, func(t *testing.T, q *Queue) {
		c := consume(t, q, ConsumerConfig{})
		publishN(t, q, 3)
		time.Sleep(10 * DefaultAckWait)
		for seq := range uint64(3) {
			d := next(t, c)
			if d.Seq != seq+1 || d.Redelivered {
				t.Errorf("delivery %d, redelivered %v", d.Seq, d.Redelivered)
			}
			ack(t, d)
		}
		if d := nextWithin(t, c, 2*DefaultAckWait); d != nil {
			t.Errorf("%d came twice", d.Seq)
		}
	})
}

func TestConsumer_NakDelays(t *testing.T) {
	inBubble(t, func(t *testing.T, q *Queue) {
		c := consume(t, q, ConsumerConfig{})
		publish(t, q, newEvent(0))
		if err := next(t, c).Nak(30 * time.Second); err != nil {
			t.Fatal(err)
		}
		if d := nextWithin(t, c, 29*time.Second); d != nil {
			t.Error("came again too early")
		}
		d := nextWithin(t, c, 2*time.Second)
		if d == nil || !d.Redelivered {
			t.Fatal("did not come again")
		}
		if err := d.Nak(0); err != nil {
			t.Fatal(err)
		}
		if d := nextWithin(t, c, time.Second); d == nil {
			t.Error("did not come at once")
		}
	})
}

func TestConsumer_DeliversInStreamOrderFromStart(t *testing.T) {
	q := open(t, Config{})
	publishN(t, q, 50)
	c := consume(t, q, ConsumerConfig{Start: 11, MaxAckPending: 7})
	pending := func(want uint64) {
		t.Helper()
		eventually(t, "pending", func() bool { // what is on its way counts nowhere for a moment
			n, err := c.Pending(t.Context())
			return err == nil && n == want
		})
	}
	pending(40)
	for seq := uint64(11); seq <= 50; seq++ {
		d := next(t, c)
		if d.Seq != seq || d.Event.Identity.ID != newEvent(int(seq-1)).Identity.ID {
			t.Fatalf("delivery %d is %d, %s", seq, d.Seq, d.Event.Identity.ID)
		}
		ack(t, d)
	}
	pending(0)
}

func TestConsumer_MaxAckPendingBoundsOpenDeliveries(t *testing.T) {
	q := open(t, Config{})
	publishN(t, q, 10)
	c := consume(t, q, ConsumerConfig{MaxAckPending: 4})
	var open []*Delivery
	for range 4 {
		open = append(open, next(t, c))
	}
	if d := nextWithin(t, c, 100*time.Millisecond); d != nil {
		t.Fatalf("a fifth open delivery: %d", d.Seq)
	}
	ack(t, open[2])
	if d := next(t, c); d.Seq != 5 {
		t.Errorf("after an ack: %d", d.Seq)
	}
}

func TestConsumer_IsMadeAnewAtStart(t *testing.T) {
	dir := t.TempDir()
	q := open(t, Config{Dir: dir})
	publishN(t, q, 5)
	old := consume(t, q, ConsumerConfig{})
	for range 3 {
		ack(t, next(t, old))
	}
	c := consume(t, q, ConsumerConfig{Start: 2})
	if d := next(t, c); d.Seq != 2 || d.Redelivered {
		t.Errorf("delivery %d, redelivered %v", d.Seq, d.Redelivered)
	}
	if _, err := old.Next(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("old consumer: %v", err)
	}
	closeQueue(t, q)

	q = open(t, Config{Dir: dir})
	c = consume(t, q, ConsumerConfig{Start: 6}) // one after the last
	publish(t, q, newEvent(5))
	if d := next(t, c); d.Seq != 6 {
		t.Errorf("delivery %d", d.Seq)
	}
}

// A power cut leaves anything of a consumer's state, for the server does not
// sync it; the handler gets its events all the same.
func TestConsumer_DamagedStateOfTheServerIsRemoved(t *testing.T) {
	for _, c := range []struct{ file, content string }{
		{"o.dat", "\x16\x02"}, {"o.dat", "this is no state of a consumer"}, {"o.dat", ""},
		{"meta.inf", ""}, {"meta.inf", "{"}, {"meta.sum", ""},
	} {
		t.Run(fmt.Sprintf("%s %q", c.file, c.content), func(t *testing.T) {
			dir := t.TempDir()
			quiet := slog.New(slog.DiscardHandler)
			q := open(t, Config{Dir: dir, Logger: quiet})
			publishN(t, q, 3)
			old := consume(t, q, ConsumerConfig{})
			for range 3 {
				ack(t, next(t, old))
			}
			closeQueue(t, q)
			files, err := filepath.Glob(filepath.Join(dir, "jetstream", "$G", "streams", streamEvents, "obs", "*", c.file))
			if err != nil || len(files) != 1 {
				t.Fatalf("the server keeps the state of consumers elsewhere now: %v, %v", files, err)
			}
			if err := os.WriteFile(files[0], []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			q = open(t, Config{Dir: dir, Logger: quiet})
			if d := next(t, consume(t, q, ConsumerConfig{Start: 2})); d.Seq != 2 {
				t.Errorf("delivery %d", d.Seq)
			}
		})
	}
}

func TestConsumer_GetsItsSourcesOnly(t *testing.T) {
	q := open(t, Config{})
	strange := []string{"wecom", "we.com", "*", ">", "a b", "", "Ünïcode", "wecom.>", "WECOM"}
	for _, source := range strange {
		ev := newEvent(0)
		ev.Source, ev.Type = source+"x", source
		publish(t, q, ev)
	}
	for i, source := range strange {
		c := consume(t, q, ConsumerConfig{Handler: "h" + source, Sources: []string{source + "x", source + "x"}})
		d := next(t, c)
		if d.Seq != uint64(i+1) || d.Event.Source != source+"x" || d.Event.Type != source {
			t.Errorf("source %q got %d, %q, %q", source, d.Seq, d.Event.Source, d.Event.Type)
		}
		if n, err := c.Pending(t.Context()); err != nil || n != 0 {
			t.Errorf("source %q: pending %d, %v", source, n, err)
		}
		c.Stop()
	}
}

func TestConsumer_ForeignMessageIsAckedAndCounted(t *testing.T) {
	q := open(t, Config{Logger: logOf(t, "stored message is no event")})
	publish(t, q, newEvent(0))
	store(t, q, &nats.Msg{Subject: "ev.x.y", Data: []byte("hello")})
	publish(t, q, newEvent(1))
	c := consume(t, q, ConsumerConfig{MaxAckPending: 1})
	for _, want := range []uint64{1, 3} {
		d := next(t, c)
		if d.Seq != want {
			t.Errorf("delivered %d, want %d", d.Seq, want)
		}
		ack(t, d)
	}
	if st := state(t, q); st.Foreign != 1 {
		t.Errorf("%+v", st)
	}
	if _, err := q.Get(t.Context(), 2); !errors.Is(err, ErrFormat) {
		t.Errorf("get: %v", err)
	}
}

func TestConsumer_StopDeleteAndCloseEndNext(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, q *Queue, c *Consumer){
		"stop": func(_ *testing.T, _ *Queue, c *Consumer) { c.Stop(); c.Stop() },
		"delete": func(t *testing.T, q *Queue, _ *Consumer) {
			if err := q.Delete(t.Context(), "crm"); err != nil {
				t.Error(err)
			}
		},
		"close": func(t *testing.T, q *Queue, _ *Consumer) { closeQueue(t, q) },
	} {
		t.Run(name, func(t *testing.T) {
			q := open(t, Config{})
			c := consume(t, q, ConsumerConfig{})
			ended := make(chan error, 3)
			for range 3 {
				go func() {
					_, err := c.Next(t.Context())
					ended <- err
				}()
			}
			end(t, q, c)
			for range 3 {
				if err := <-ended; !errors.Is(err, ErrClosed) {
					t.Error(err)
				}
			}
		})
	}
}

func TestConsumer_DeletedAtTheServerEndsNext(t *testing.T) {
	q := open(t, Config{})
	c := consume(t, q, ConsumerConfig{})
	publish(t, q, newEvent(0))
	ack(t, next(t, c)) // from here on the server holds our request for more
	if err := q.now().js.DeleteConsumer(t.Context(), streamEvents, token("crm")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Next(t.Context()); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

func TestConsumers_ListsHandlersUntilTheyAreDeleted(t *testing.T) {
	q := open(t, Config{})
	handlers := []string{"a", "b.c", "ü", "x y z"}
	for _, h := range handlers {
		consume(t, q, ConsumerConfig{Handler: h}).Stop()
	}
	list := func(want []string) {
		t.Helper()
		got, err := q.Consumers(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	list(slices.Clone(handlers))
	for range 2 { // the second finds nothing, which is fine
		if err := q.Delete(t.Context(), "b.c"); err != nil {
			t.Fatal(err)
		}
	}
	list([]string{"a", "ü", "x y z"})
}

func TestConsumer_ManyWorkersGetEachEventOnce(t *testing.T) {
	q := open(t, Config{})
	c := consume(t, q, ConsumerConfig{MaxAckPending: 16})
	const events = 400
	var publishers, workers sync.WaitGroup
	for p := range 4 {
		publishers.Go(func() {
			for i := range events / 4 {
				publish(t, q, newEvent(p*events+i))
			}
		})
	}
	var mu sync.Mutex
	seen := make(map[uint64]int)
	for range 8 {
		workers.Go(func() {
			for {
				d, err := c.Next(t.Context())
				if err != nil {
					return
				}
				mu.Lock()
				seen[d.Seq]++
				done := len(seen) == events
				mu.Unlock()
				if d.Seq > q.commit.durable.load() {
					t.Errorf("%d delivered before it was durable", d.Seq)
				}
				ack(t, d)
				if done {
					c.Stop()
				}
			}
		})
	}
	publishers.Wait()
	workers.Wait()
	for seq := range uint64(events) {
		if seen[seq+1] != 1 {
			t.Errorf("event %d seen %d times", seq+1, seen[seq+1])
		}
	}
}
