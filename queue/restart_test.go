package queue

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestRestart_ConsumersComeBackByThemselves(t *testing.T) {
	q := open(t, Config{})
	settled := uint64(0)
	c := consume(t, q, ConsumerConfig{Resume: func() uint64 { return settled + 1 }})
	publishN(t, q, 3)
	ack(t, next(t, c))
	settled = 1
	second := next(t, c)
	last := uint64(3)
	waits := make(chan *Delivery, 1)
	for range 2 { // once would hide what is left of the first time
		if err := q.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := second.Ack(); !errors.Is(err, ErrUnavailable) {
			t.Errorf("ack of the life before: %v", err)
		}
		if again := next(t, c); again.Seq != 2 {
			t.Errorf("delivery %d comes first, not 2", again.Seq)
		}
		for seq := uint64(3); seq <= last; seq++ {
			ack(t, next(t, c))
		}
		go func() {
			d, err := c.Next(context.Background())
			if err != nil {
				t.Error(err)
			}
			waits <- d
		}()
		last = publish(t, q, newEvent(10))
		if d := <-waits; d != nil && d.Seq != last {
			t.Errorf("delivery %d, published %d", d.Seq, last)
		}
	}
	if floor, err := c.AckFloor(t.Context()); err != nil || floor != 1 {
		t.Errorf("floor %d, %v", floor, err)
	}
	if err := q.Health(); err != nil {
		t.Error(err)
	}
}

func TestRestart_QueueThatIsDownIsUnavailableAndComesBack(t *testing.T) {
	dir := t.TempDir()
	q := open(t, Config{Dir: dir, Incarnation: "a", First: true, Logger: logOf(t, "nats server", "queue connection")})
	c := consume(t, q, ConsumerConfig{})
	publish(t, q, newEvent(1))
	d := next(t, c)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := q.Restart(ended); err == nil {
		t.Fatal("restarted under a context that had ended")
	}
	ev := newEvent(2)
	_, published := q.Publish(t.Context(), ev)
	_, got := q.Get(t.Context(), 1)
	_, floor := c.AckFloor(t.Context())
	_, state := q.State(t.Context())
	for what, err := range map[string]error{
		"publish": published, "get": got, "floor": floor, "state": state, "ack": d.Ack(), "health": q.Health(),
	} {
		if !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := q.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if again := next(t, c); again.Seq != 1 {
		t.Errorf("delivery %d", again.Seq)
	}
	publish(t, q, ev)
}

// A stream that ends earlier than what consumers may have seen gives its
// sequences to other events.
func TestRestart_StreamThatLostItsEndEndsTheProcess(t *testing.T) {
	q := open(t, Config{})
	publish(t, q, newEvent(1))
	q.commit.noteWritten(7)
	if err := q.Restart(t.Context()); !errors.Is(err, ErrUnavailable) {
		t.Errorf("restart: %v", err)
	}
	select {
	case <-q.Failed():
	default:
		t.Error("the queue goes on")
	}
}

func TestRestart_FullDiskThatHasRoomAgain(t *testing.T) {
	dir, ok := tmpfs(t, 32<<20)
	if !ok {
		return
	}
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 16<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	q := open(t, Config{
		Dir: filepath.Join(dir, "q"), MaxBytes: 31 << 20, PublishTimeout: 300 * time.Millisecond,
		Logger: logOf(t, "nats server", "queue connection"),
	})
	c := consume(t, q, ConsumerConfig{})
	var stored []uint64
	for i := 0; ; i++ {
		ev := newEvent(i)
		ev.Body = make([]byte, 64<<10)
		seq, err := q.Publish(t.Context(), ev)
		if err != nil {
			break
		}
		stored = append(stored, seq)
	}
	if q.Health() == nil {
		t.Error("the queue is well on a full disk")
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if err := q.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := q.Health(); err != nil {
		t.Error(err)
	}
	stored = append(stored, publish(t, q, newEvent(0)))
	for _, seq := range stored {
		d := next(t, c)
		if d.Seq != seq {
			t.Fatalf("delivery %d, stored %d", d.Seq, seq)
		}
		ack(t, d)
	}
}

// tmpfs mounts a file system of size bytes. It is false, and says why, where this
// process may not.
func tmpfs(t *testing.T, size int) (dir string, ok bool) {
	t.Helper()
	dir = t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size="+strconv.Itoa(size)); err != nil {
		t.Log("NOT TESTED: a small file system cannot be mounted (root may):", err)
		return "", false
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir, true
}
