package ledger

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"idemd/dedup"
	"idemd/event"
)

// a platform's event: its first copy was seen at first, another one came after
// delay.
func entryAt(first time.Time, id string, delay time.Duration) Entry {
	return entryOf(first, "shop", "order.paid", "crm", id, delay)
}

func entryOf(first time.Time, source, typ, handler, id string, delay time.Duration) Entry {
	ev := &event.Event{
		Source: source, Type: typ, Identity: event.NewIdentity("", event.KindPlatform, "", id),
		Received: first.Add(delay), Origin: event.OriginCallback,
	}
	rec := &dedup.Record{
		State: dedup.Done, Origin: event.OriginCallback, FirstSeen: dedup.At(first), Started: dedup.At(first),
		Committed: dedup.At(first.Add(time.Second)), Seq: 7, Fence: dedup.NewFence(3, 9),
	}
	return NewEntry(first.Add(delay), event.KeyFor(ev, handler), handler, ev, 8, dedup.AlreadyDone, rec)
}

func keyOf(id string) event.Key {
	ev := &event.Event{Source: "shop", Identity: event.NewIdentity("", event.KindPlatform, "", id)}
	return event.KeyFor(ev, "crm")
}

func open(t *testing.T, cfg Config) *Ledger {
	t.Helper()
	l := Open(t.Context(), cfg)
	t.Cleanup(func() { closeLedger(t, l) })
	return l
}

func closeLedger(t *testing.T, l *Ledger) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

func find(t *testing.T, l *Ledger, id string) []Entry {
	t.Helper()
	got, err := l.Find(context.Background(), keyOf(id))
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// files gives the ledger's files, oldest first.
func files(t *testing.T, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestLedger_TellsWhatWasSuppressedAlsoAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		l := open(t, Config{Dir: dir})
		want := []Entry{entryAt(time.Now(), "a", time.Minute), entryAt(time.Now(), "a", time.Hour)}
		l.Note(want[0])
		l.Note(entryAt(time.Now(), "b", time.Second))
		want[1].Seq = 9
		l.Note(want[1])
		if diff := cmp.Diff(want, find(t, l, "a")); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
		closeLedger(t, l)
		again := open(t, Config{Dir: dir})
		again.Note(entryAt(time.Now(), "c", time.Second))
		late := want[0] // the queue delivers it again
		late.At = late.At.Add(2 * time.Hour)
		late.First = late.At
		again.Note(late)
		late.Redelivery = true
		want = append(want, late)
		if diff := cmp.Diff(want, find(t, again, "a")); diff != "" {
			t.Errorf("after a restart -want +got\n%s", diff)
		}
		if len(files(t, dir)) != 1 || len(find(t, again, "c")) != 1 || len(find(t, again, "nobody")) != 0 {
			t.Errorf("the day's file does not go on: %v", files(t, dir))
		}
	})
}

// A plain copy of the running directory has all but the last second; what was
// being written when it was made is cut.
func TestLedger_ACopyOfTheRunningDirectoryIsReadable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, copied := t.TempDir(), t.TempDir()
		l := open(t, Config{Dir: dir})
		l.Note(entryAt(time.Now(), "a", time.Minute))
		l.Note(entryAt(time.Now(), "b", time.Minute))
		time.Sleep(flushEvery + time.Millisecond)
		if err := os.CopyFS(filepath.Join(copied, "x"), os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		name := files(t, filepath.Join(copied, "x"))[0]
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, tail := range []string{"", "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", "half a"} {
			for cut := range len(b) {
				if err := os.WriteFile(name, append(b[:cut:cut], tail...), 0o600); err != nil {
					t.Fatal(err)
				}
				c := open(t, Config{Dir: filepath.Dir(name)})
				n := len(find(t, c, "a")) + len(find(t, c, "b"))
				if cut > len(b)-5 && n == 0 || cut >= headSize && tail != "half a" && len(c.Stats().Damaged) > 0 {
					t.Fatalf("cut to %d of %d bytes and %q: %d entries, %+v", cut, len(b), tail, n, c.Stats())
				}
				c.Note(entryAt(time.Now(), "new", time.Second))
				closeLedger(t, c)
				c = open(t, Config{Dir: filepath.Dir(name)})
				if len(find(t, c, "new")) != 1 {
					t.Fatalf("cut to %d of %d bytes and %q: what came later is lost: %+v", cut, len(b), tail, c.Stats())
				}
				closeLedger(t, c)
				for _, f := range files(t, filepath.Dir(name)) {
					if err := os.Remove(f); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	})
}

func TestLedger_DamageIsSaidAndStopsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		l := open(t, Config{Dir: dir})
		l.Note(entryAt(time.Now(), "before", time.Minute))
		for i := range 20 {
			l.Note(entryAt(time.Now(), fmt.Sprint("after", i), time.Minute))
		}
		closeLedger(t, l)
		name := files(t, dir)[0]
		good, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for at := range good {
			harmed := append([]byte(nil), good...)
			harmed[at] ^= 0x10
			if err := os.WriteFile(name, harmed, 0o600); err != nil {
				t.Fatal(err)
			}
			l = open(t, Config{Dir: dir})
			st := l.Stats()
			last := at >= len(good)-maxPayload-frameHead // may be a torn end
			if len(st.Damaged) != 1 && !last || len(find(t, l, "before")) != 1 && at > 200 {
				t.Fatalf("byte %d: %+v", at, st)
			}
			l.Note(entryAt(time.Now(), "new", time.Minute))
			closeLedger(t, l)
			if after, err := os.ReadFile(name); err != nil || len(after) < len(harmed) {
				t.Fatalf("byte %d: evidence was cut, %v", at, err)
			}
			l = open(t, Config{Dir: dir})
			if len(find(t, l, "new")) != 1 {
				t.Fatalf("byte %d: what came after the damage is lost", at)
			}
			closeLedger(t, l)
			for _, f := range files(t, dir) {
				if f != name {
					if err := os.Remove(f); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	})
}

func TestLedger_AStormIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		l := open(t, Config{Dir: dir})
		first := time.Now()
		const n = 100_000
		for range n / 100 {
			for range 100 {
				l.Note(entryAt(first, "a", time.Since(first)))
			}
			time.Sleep(time.Second)
		}
		got := find(t, l, "a")
		if len(got) != singles+1 {
			t.Fatalf("%d entries", len(got))
		}
		sum := got[singles]
		if sum.Count != n-singles || sum.First != dedup.At(first) || sum.At != dedup.At(first.Add((n/100-1)*time.Second)) {
			t.Errorf("got %+v", sum)
		}
		if st := l.Stats(); st.Noted != n || st.Unkept != 0 || st.Bytes > 10<<10 {
			t.Errorf("a storm of %d takes %+v", n, st)
		}
		// Nothing but the last second of single entries, and the last minute of a
		// count, depends on an orderly end.
		c := open(t, Config{Dir: dir})
		kept := find(t, c, "a")
		if len(kept) != singles+1 || kept[singles].Count != n-singles {
			t.Errorf("a second reader has %+v", kept[len(kept)-1])
		}
	})
}

func TestLedger_MemoryIsBoundedWhateverArrives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, Config{Dir: t.TempDir(), DayBytes: 1 << 20})
		first := time.Now()
		const n = 3*maxRemember + 10
		for i := range n {
			l.Note(entryOf(first, fmt.Sprint("source", i%300), fmt.Sprint("type", i), "crm", fmt.Sprint("id", i), time.Second))
			if i%1000 == 0 {
				time.Sleep(flushEvery)
			}
		}
		st := l.Stats()
		l.mu.Lock()
		keys, events := len(l.storms.keys)+len(l.storms.older), len(l.arrivals.known)+len(l.arrivals.older)
		sources, types := len(l.arrivals.types), 0
		for _, ts := range l.arrivals.types {
			types = max(types, len(ts))
		}
		l.mu.Unlock()
		if keys > 2*maxStorms || events > 2*maxRemember || sources > maxSources+1 || types > maxTypes+1 {
			t.Errorf("%d keys, %d events, %d sources, %d types", keys, events, sources, types)
		}
		if st.Bytes > 1<<20+100<<10 || st.Unkept == 0 || st.Noted != n {
			t.Errorf("the day's share is not kept to: %+v", st)
		}
	})
}

func TestLedger_DaysGoWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		l := open(t, Config{Dir: dir, Retain: 10 * day})
		for i := range 13 {
			l.Note(entryAt(time.Now(), fmt.Sprint("day", i), time.Minute))
			time.Sleep(day)
		}
		time.Sleep(2 * expireEvery)
		// It is two hours after the tenth day that followed on day2.
		if names := files(t, dir); len(names) != 10 || len(find(t, l, "day2")) != 0 || len(find(t, l, "day3")) != 1 {
			t.Errorf("%d files: %v", len(names), names)
		}
		if a := l.Arrivals(); len(a) != 2 || a[0].Count != 10 {
			t.Errorf("the distribution still has %+v", a)
		}
		l.SetRetain(8 * day)
		if n, err := l.Expire(time.Now()); n != 2 || err != nil || len(files(t, dir)) != 8 {
			t.Errorf("with a shorter time %d removed, %v", n, err)
		}
		closeLedger(t, l)
		small := open(t, Config{Dir: dir, Retain: 10 * day, TotalBytes: 1000})
		n, err := small.Expire(time.Now())
		if err != nil || n == 0 || small.Stats().Bytes > 1000 || len(find(t, small, "day12")) != 1 {
			t.Errorf("%d removed, %v, %+v", n, err, small.Stats())
		}
	})
}

const day = 24 * time.Hour

// A disk that takes nothing costs entries and nothing else; it is tried again.
func TestLedger_ADiskThatRefusesStopsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "ledger")
		if err := os.WriteFile(dir, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		room := true
		l := open(t, Config{Dir: dir, Room: func() bool { return room }})
		l.Note(entryAt(time.Now(), "a", time.Minute))
		time.Sleep(pauseAfter)
		l.Note(entryAt(time.Now(), "b", time.Minute))
		time.Sleep(2 * flushEvery)
		if st := l.Stats(); st.Noted != 2 || st.Unkept != 2 || !strings.Contains(st.LastFail, "not a directory") {
			t.Errorf("got %+v", st)
		}
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		time.Sleep(pauseAfter)
		l.Note(entryAt(time.Now(), "c", time.Minute))
		room = false
		l.Note(entryAt(time.Now(), "d", time.Minute))
		if len(find(t, l, "c")) != 1 || len(find(t, l, "d")) != 0 || l.Stats().Unkept != 3 {
			t.Errorf("got %+v", l.Stats())
		}
		if a := l.Arrivals(); a[0].Count != 4 {
			t.Errorf("what is only counted is in the distribution, too: %+v", a)
		}
	})
}

func TestLedger_NilKnowsNothing(t *testing.T) {
	var l *Ledger
	l.Note(Entry{})
	found, err := l.Find(t.Context(), event.Key{})
	n, eerr := l.Expire(time.Now())
	if len(found) != 0 || err != nil || n != 0 || eerr != nil || l.Arrivals() != nil || l.Stats().Noted != 0 || l.Close() != nil {
		t.Errorf("%v, %v, %v, %v", found, err, n, eerr)
	}
}

// Entries come while others are being written; none may damage the file.
func TestLedger_TakesEntriesWhileItWrites(t *testing.T) {
	dir := t.TempDir()
	l := Open(t.Context(), Config{Dir: dir})
	const writers, each = 4, 5000
	var all, flushing sync.WaitGroup
	stop := make(chan struct{})
	flushing.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				l.flush(false)
			}
		}
	})
	for w := range writers {
		all.Go(func() {
			for i := range each {
				l.Note(entryAt(time.Now(), fmt.Sprint("id", w, "-", i), time.Second))
			}
		})
	}
	all.Wait()
	close(stop)
	flushing.Wait()
	closeLedger(t, l)
	again := Open(t.Context(), Config{Dir: dir})
	defer closeLedger(t, again)
	if a := again.Arrivals(); len(a) == 0 || a[0].Count != writers*each || len(again.Stats().Damaged) > 0 || l.Stats().Unkept > 0 {
		t.Errorf("got %+v, %+v", a, again.Stats())
	}
}
