package queue

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"idemd/event"
)

// smallBlocks is a budget under which the server makes blocks of 32 kB, so that
// each of these events' fifteen is one.
const smallBlocks = 120_000

// verifyErr is what verify says of a directory.
func verifyErr(ctx context.Context, cfg Config) error {
	_, err := verify(ctx, cfg)
	return err
}

func wideEvent(i int) *event.Event {
	ev := newEvent(i)
	ev.Body = fmt.Appendf(nil, `{"n":%d,"text":%q}`, i, strings.Repeat("x", 1500))
	return ev
}

// blockyQueue opens a queue with a few blocks.
func blockyQueue(t *testing.T, dir string) *Queue {
	t.Helper()
	q := open(t, Config{Dir: dir, MaxBytes: smallBlocks, Incarnation: "a", First: true})
	for i := range 40 {
		publish(t, q, wideEvent(i))
	}
	return q
}

func blocksIn(t *testing.T, q *Queue) []Block {
	t.Helper()
	all, err := q.Blocks()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// kept gives the sequences from the first to the last event, which are all there.
func kept(t *testing.T, q *Queue) (first, last uint64) {
	t.Helper()
	err := q.Walk(t.Context(), 1, 1<<60, func(m Message) (bool, error) {
		if first == 0 {
			first = m.Seq
		} else if m.Seq != last+1 {
			t.Errorf("event %d after %d", m.Seq, last)
		}
		last = m.Seq
		return true, nil
	})
	st, serr := q.State(t.Context())
	if err != nil || serr != nil {
		t.Fatal(err, serr)
	}
	if st.FirstSeq != first || st.LastSeq != last || st.Messages != last-first+1 {
		t.Errorf("state %+v, events %d to %d", st, first, last)
	}
	return first, last
}

func mustPurge(t *testing.T, q *Queue, upTo uint64, grace time.Duration) Purged {
	t.Helper()
	done, err := q.Purge(t.Context(), upTo, grace)
	if err != nil {
		t.Fatal(err)
	}
	return done
}

func TestPurgePlan(t *testing.T) {
	now := time.Unix(10_000, 0)
	said := func(first uint64, age time.Duration) purged { return purged{First: first, Since: now.Add(-age).Unix()} }
	for _, c := range []struct {
		name          string
		said          purged
		first, target uint64
		grace         time.Duration
		say           purged
		to            uint64
	}{
		{"nothing to go", purged{}, 5, 5, time.Hour, purged{}, 0},
		{"not even up to what was said", said(9, 2*time.Hour), 5, 3, time.Hour, said(9, 2*time.Hour), 0},
		{"first said", purged{}, 1, 7, time.Hour, said(7, 0), 0},
		{"said, too young", said(7, time.Minute), 1, 9, time.Hour, said(7, time.Minute), 0},
		{"said long enough", said(7, time.Hour), 1, 7, time.Hour, said(7, time.Hour), 7},
		{"said long enough, and more to say", said(7, time.Hour), 1, 9, time.Hour, said(9, 0), 7},
		{"said, and needed again", said(7, time.Hour), 1, 4, time.Hour, said(7, time.Hour), 4},
		{"done, and more to say", said(7, time.Hour), 7, 9, time.Hour, said(9, 0), 0},
		{"the clock went back", said(7, -time.Hour), 1, 9, time.Hour, said(9, 0), 0},
		{"at once", purged{}, 1, 9, 0, said(9, 0), 9},
		{"at once, said for more", said(12, time.Minute), 1, 9, 0, said(12, 0), 9},
	} {
		if say, to := purgePlan(c.said, c.first, c.target, now, c.grace); to != c.to || say.First != c.say.First || to == 0 && say != c.say {
			t.Errorf("%s: %+v, %d; want %+v, %d", c.name, say, to, c.say, c.to)
		}
	}
}

// What is purged goes block by block, what stays is whole, and the next start
// believes it; more events and another purge go on from there.
func TestPurge_TakesWholeBlocks(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "queue")
	q := blockyQueue(t, dir)
	blocks := blocksIn(t, q)
	if len(blocks) < 3 || blocks[0].First != 1 || time.Since(blocks[1].Stored) > time.Hour {
		t.Fatalf("blocks %+v", blocks)
	}
	if done := mustPurge(t, q, blocks[1].First-2, 0); done != (Purged{}) {
		t.Errorf("purged %+v of a block that is needed", done)
	}
	if done := mustPurge(t, q, 1<<40, time.Hour); done.Events != 0 || done.Said != blocks[len(blocks)-1].First-1 {
		t.Errorf("said %+v", done)
	}
	if first, last := kept(t, q); first != 1 || last != 40 {
		t.Errorf("kept %d to %d before it was time", first, last)
	}
	done := mustPurge(t, q, blocks[1].First-1, 0)
	if want := blocks[1].First - 1; done.Events != want || done.Bytes != blocks[0].Bytes || done.Said != blocks[len(blocks)-1].First-blocks[1].First {
		t.Errorf("purged %+v, want %d events", done, want)
	}
	if first, last := kept(t, q); first != blocks[1].First || last != 40 {
		t.Errorf("kept %d to %d", first, last)
	}
	if _, err := q.Get(t.Context(), 1); !errors.Is(err, ErrMissing) {
		t.Errorf("a purged event: %v", err)
	}
	if seq, err := q.SeqAt(t.Context(), time.Unix(0, 0)); err != nil || seq != blocks[1].First {
		t.Errorf("the oldest is %d, %v", seq, err)
	}
	closeQueue(t, q)

	q = open(t, Config{Dir: dir, MaxBytes: smallBlocks, Incarnation: "a", Last: 40})
	publish(t, q, wideEvent(40))
	if done := mustPurge(t, q, 1<<40, 0); done.Events == 0 || done.Said != 0 {
		t.Errorf("purged %+v", done)
	}
	if left := blocksIn(t, q); len(left) != 1 {
		t.Errorf("blocks %+v", left)
	}
	if seq := publish(t, q, wideEvent(41)); seq != 42 {
		t.Errorf("the next event is %d", seq)
	}
	first, _ := kept(t, q)
	if err := q.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if again, last := kept(t, q); again != first || last != 42 {
		t.Errorf("after a restart %d to %d, was from %d", again, last, first)
	}
}

func TestPurge_AFewBlocksAtATime(t *testing.T) {
	blocks := make([]Block, 20)
	for i := range blocks {
		blocks[i].First = uint64(10*i + 1)
	}
	for _, c := range []struct {
		to, want uint64
		more     bool
	}{{11, 11, false}, {81, 81, false}, {91, 81, true}, {191, 81, true}, {0, 0, false}} {
		if got, more := slice(blocks, c.to); got != c.want || more != c.more {
			t.Errorf("up to %d: %d, %t", c.to, got, more)
		}
	}
	if got, more := slice(blocks[:3], 21); got != 21 || more {
		t.Errorf("of three: %d, %t", got, more)
	}
	now := time.Unix(10_000, 0)
	said := purged{First: 181, Since: now.Add(-time.Hour).Unix()}
	if say, to, more := nextPurge(said, blocks, 191, now, time.Hour); say != said || to != 81 || !more {
		t.Errorf("%+v, %d, %t: what was said long enough ago is forgotten", say, to, more)
	}
	if say, to, more := nextPurge(said, blocks[12:], 191, now, time.Hour); say.First != 191 || say.Since != now.Unix() || to != 181 || more {
		t.Errorf("%+v, %d, %t at the end", say, to, more)
	}
	if say, to, more := nextPurge(said, blocks, 191, now, 0); say.First != 191 || to != 81 || !more {
		t.Errorf("%+v, %d, %t at once", say, to, more)
	}
}

// A consumer that stands before the purge goes on behind it, and what it has not
// settled behind it still comes.
func TestPurge_ConsumersGoOn(t *testing.T) {
	q := blockyQueue(t, "")
	c := consume(t, q, ConsumerConfig{Start: 1, AckWait: time.Hour})
	blocks := blocksIn(t, q)
	var open []*Delivery
	for range blocks[1].First + 2 {
		d := next(t, c)
		if d.Seq < blocks[1].First {
			ack(t, d)
		} else {
			open = append(open, d)
		}
	}
	mustPurge(t, q, blocks[1].First-1, 0)
	for _, d := range open[1:] {
		ack(t, d)
	}
	for seq := open[len(open)-1].Seq + 1; seq <= 40; seq++ {
		if d := next(t, c); d.Seq != seq {
			t.Fatalf("delivered %d, want %d", d.Seq, seq)
		} else {
			ack(t, d)
		}
	}
	floor := func() uint64 {
		f, err := c.AckFloor(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	if f := floor(); f != open[0].Seq-1 {
		t.Errorf("ack floor %d, though %d is not settled", f, open[0].Seq)
	}
	ack(t, open[0])
	deadline := time.Now().Add(20 * time.Second)
	for floor() != 40 && time.Now().Before(deadline) {
		<-time.After(10 * time.Millisecond)
	}
	if f := floor(); f != 40 {
		t.Errorf("ack floor %d at the end", f)
	}
}

// A power cut may take the newest events: PURGED names none of them.
func TestPurge_KeepsABlockBeforeWhatIsNotDurable(t *testing.T) {
	q := open(t, Config{MaxBytes: smallBlocks})
	for i := range 10 {
		publish(t, q, wideEvent(i))
	}
	for i := range 30 {
		store(t, q, encoded(t, wideEvent(10+i)))
	}
	deadline := time.Now().Add(20 * time.Second)
	for st, err := q.State(t.Context()); st.LastSeq < 40 && time.Now().Before(deadline); st, err = q.State(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
	}
	if blocks := blocksIn(t, q); len(blocks) < 2 || q.commit.durable.load() != 10 {
		t.Fatalf("blocks %+v, durable %d", blocks, q.commit.durable.load())
	}
	if done := mustPurge(t, q, 1<<40, 0); done != (Purged{}) || q.purged.First != 0 {
		t.Errorf("purged %+v, said %+v", done, q.purged)
	}
}

// On a disk that takes nothing, what was said before can still go.
func TestPurge_WhereNothingCanBeWritten(t *testing.T) {
	q := open(t, Config{MaxBytes: smallBlocks, Incarnation: "a", First: true, Logger: logOf(t, "no more history can go")})
	for i := range 40 {
		publish(t, q, wideEvent(i))
	}
	if err := os.Mkdir(filepath.Join(q.cfg.Dir, purgedName+".tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
	if done, err := q.Purge(t.Context(), 1<<40, 0); err == nil || done != (Purged{}) {
		t.Errorf("nothing was said: %+v, %v", done, err)
	}
	if first, _ := kept(t, q); first != 1 {
		t.Errorf("kept from %d, though nothing was said", first)
	}
	blocks := blocksIn(t, q)
	if err := os.Remove(filepath.Join(q.cfg.Dir, purgedName+".tmp")); err != nil {
		t.Fatal(err)
	}
	mustPurge(t, q, blocks[1].First-1, time.Hour)
	if err := os.Mkdir(filepath.Join(q.cfg.Dir, purgedName+".tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
	if done := mustPurge(t, q, 1<<40, 0); done.Events != blocks[1].First-1 {
		t.Errorf("%+v", done)
	}
	if first, last := kept(t, q); first != blocks[1].First || last != 40 {
		t.Errorf("kept %d to %d", first, last)
	}
}

func TestNextOf(t *testing.T) {
	q := open(t, Config{})
	for i, source := range []string{"a", "b", "a", "c", "b"} {
		ev := newEvent(i)
		ev.Source = source
		publish(t, q, ev)
	}
	for _, c := range []struct {
		sources []string
		from    uint64
		want    uint64
	}{{nil, 2, 2}, {nil, 9, 6}, {[]string{"a"}, 2, 3}, {[]string{"a"}, 4, 6}, {[]string{"a", "b"}, 4, 5}, {[]string{"b", "c"}, 3, 4}, {[]string{"c", "b"}, 3, 4}, {[]string{"x"}, 0, 6}} {
		if got, err := q.NextOf(t.Context(), c.sources, c.from); err != nil || got != c.want {
			t.Errorf("%v from %d: %d, %v; want %d", c.sources, c.from, got, err, c.want)
		}
	}
}

// purgeChildEnv makes the test binary purge the directory that it names, and kill
// itself at a point.
const (
	purgeChildEnv = "IDEMD_QUEUE_PURGE_DIR"
	purgePointEnv = "IDEMD_QUEUE_PURGE_POINT"
)

func purgeChild(dir string) int {
	ctx := context.Background()
	q, err := Open(ctx, Config{
		Dir: dir, MaxBytes: smallBlocks, Incarnation: "a", Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Fault: func(point string) {
			if point == os.Getenv(purgePointEnv) {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
		},
	})
	if err == nil {
		_, err = q.Purge(ctx, 1<<40, 0)
	}
	fmt.Fprintln(os.Stderr, "not killed:", err)
	return 1
}

// A kill at each point leaves the blocks of before or of after, and the next start
// goes on with either.
func TestPurge_KilledAtEachPoint(t *testing.T) {
	for point, purged := range map[string]bool{"purge-said": false, "purged": true} {
		t.Run(point, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "queue")
			q := blockyQueue(t, dir)
			newest := blocksIn(t, q)
			closeQueue(t, q)
			child := exec.Command(os.Args[0])
			child.Env = append(os.Environ(), purgeChildEnv+"="+dir, purgePointEnv+"="+point)
			child.Stderr = os.Stderr
			var exit *exec.ExitError
			if err := child.Run(); !errors.As(err, &exit) || exit.ExitCode() != -1 {
				t.Fatalf("child: %v", err)
			}
			q = open(t, Config{Dir: dir, MaxBytes: smallBlocks, Incarnation: "a", Last: 40})
			want := uint64(1)
			if purged {
				want = newest[len(newest)-1].First
			}
			if first, last := kept(t, q); first != want || last != 40 {
				t.Errorf("kept %d to %d, want from %d", first, last, want)
			}
			mustPurge(t, q, 1<<40, 0)
			if first, _ := kept(t, q); first != newest[len(newest)-1].First {
				t.Errorf("purged up to %d", first)
			}
		})
	}
}

// Whatever a power cut keeps of the removed files, the next start holds everything
// from PURGED on, and nothing from before a hole.
func TestPurge_AnyBlocksMayComeBack(t *testing.T) {
	for n := range 1 << 4 {
		gone, isCopy := n%8, n >= 8
		t.Run(fmt.Sprintf("%03b, copy %t", gone, isCopy), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "queue")
			q := blockyQueue(t, dir)
			for i := range 20 { // a fourth block
				publish(t, q, wideEvent(40+i))
			}
			blocks := blocksIn(t, q)
			mustPurge(t, q, blocks[3].First-1, time.Hour) // said, and not done
			closeQueue(t, q)
			crashed0(t, dir)
			want := uint64(1)
			for i := range 3 {
				if gone&(1<<i) != 0 {
					want = blocks[i+1].First
					if err := os.Remove(filepath.Join(streamDir(dir, streamEvents), fmt.Sprintf("%d.blk", i+1))); err != nil {
						t.Fatal(err)
					}
				}
			}
			for range 2 {
				q = open(t, Config{Dir: dir, MaxBytes: smallBlocks, Incarnation: "a", Last: 60, Copy: isCopy})
				if first, last := kept(t, q); first != want || last != 60 {
					t.Errorf("kept %d to %d, want from %d", first, last, want)
				}
				closeQueue(t, q)
			}
		})
	}
}

// crashed0 leaves a closed queue as a kill would have, its old index included.
func crashed0(t *testing.T, dir string) {
	t.Helper()
	if err := os.Remove(filepath.Join(dir, closedName)); err != nil {
		t.Fatal(err)
	}
}

// What PURGED does not tell is damage: blocks from behind it, one it does not know
// of, one amid a hole, and PURGED itself.
func TestPurge_DamageIsStillFound(t *testing.T) {
	made := filepath.Join(t.TempDir(), "queue")
	q := blockyQueue(t, made)
	for i := range 20 {
		publish(t, q, wideEvent(40+i))
	}
	blocks := blocksIn(t, q)
	mustPurge(t, q, blocks[1].First-1, 0)
	closeQueue(t, q)
	crashed0(t, made)
	blk := func(dir string, n int) string {
		return filepath.Join(streamDir(dir, streamEvents), fmt.Sprintf("%d.blk", n))
	}
	for name, harm := range map[string]func(dir string) error{
		"PURGED is missing":      func(dir string) error { return os.Remove(filepath.Join(dir, purgedName)) },
		"PURGED is empty":        func(dir string) error { return os.WriteFile(filepath.Join(dir, purgedName), nil, 0o600) },
		"PURGED of another":      func(dir string) error { return rewrite(dir, purged{First: 50, Incarnation: "b"}) },
		"PURGED behind the end":  func(dir string) error { return rewrite(dir, purged{First: 61, Incarnation: "a"}) },
		"the next block is lost": func(dir string) error { return os.Remove(blk(dir, 2)) },
		"a block between":        func(dir string) error { return os.Remove(blk(dir, 3)) },
		"the last ones": func(dir string) error {
			return errors.Join(os.Remove(blk(dir, 4)), os.Remove(blk(dir, 3)), os.Remove(blk(dir, 2)))
		},
	} {
		dir := filepath.Join(t.TempDir(), "queue")
		if err := errors.Join(os.CopyFS(dir, os.DirFS(made)), harm(dir)); err != nil {
			t.Fatal(err)
		}
		if q, err := Open(t.Context(), Config{Dir: dir, MaxBytes: smallBlocks, Incarnation: "a", Logger: logOf(t)}); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", name, err)
			if err == nil {
				closeQueue(t, q)
			}
		}
	}
}

func rewrite(dir string, p purged) error {
	b, err := p.encode()
	return errors.Join(err, os.WriteFile(filepath.Join(dir, purgedName), b, 0o600))
}

// In a copy of a running queue PURGED may be younger than the blocks. From then on
// the copy's own beginning is what counts.
func TestPurge_ACopyKnowsItsOwnBeginning(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "queue")
	q := blockyQueue(t, dir)
	blocks := blocksIn(t, q)
	mustPurge(t, q, blocks[1].First-1, 0)
	closeQueue(t, q)
	crashed0(t, dir)
	if err := rewrite(dir, purged{First: 500, Incarnation: "a"}); err != nil {
		t.Fatal(err)
	}
	q = open(t, Config{Dir: dir, MaxBytes: smallBlocks, Incarnation: "a", Copy: true})
	if first, last := kept(t, q); first != blocks[1].First || last != 40 {
		t.Errorf("kept %d to %d", first, last)
	}
	closeQueue(t, q)
	if p, err := readPurged(Config{Dir: dir}); err != nil || p.First != blocks[1].First {
		t.Errorf("it says %+v, %v", p, err)
	}
}

// FuzzPurged: what is taken for PURGED says the same when it is written again.
func FuzzPurged(f *testing.F) {
	b, err := purged{First: 7, Since: 9, Incarnation: "a"}.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(purgedHead))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := decodePurged(b)
		if err != nil {
			return
		}
		again, err := p.encode()
		if q, derr := decodePurged(again); err != nil || derr != nil || q != p || p.First < 2 {
			t.Fatalf("%+v, then %+v: %v, %v", p, q, err, derr)
		}
	})
}
