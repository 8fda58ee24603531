package boltstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/FastFilter/xorfilter"

	"idemd/dedup"
)

// mustStep repeats a step until there is no more to do, and gives the sum.
func mustStep(t *testing.T, do func(context.Context) (Step, error)) Step {
	t.Helper()
	var all Step
	for more := true; more; {
		step, err := do(t.Context())
		if err != nil {
			t.Fatalf("step: %v", err)
		}
		all.Took, all.Made = append(all.Took, step.Took...), append(all.Made, step.Made...)
		all.Keys, all.Carried, all.Expired = all.Keys+step.Keys, all.Carried+step.Carried, all.Expired+step.Expired
		more = step.More
	}
	return all
}

func sealAndMove(t *testing.T, s *Store) Step {
	t.Helper()
	if _, err := s.Seal(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	return mustStep(t, s.Move)
}

// mergeAll merges whatever is hot.
func mergeAll(t *testing.T, s *Store) Step {
	t.Helper()
	return mustStep(t, func(ctx context.Context) (Step, error) { return s.Merge(ctx, dedup.At(s.cfg.Now())+1) })
}

func wantFiles(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		if name := e.Name(); name != manifestName && name != checkpointName {
			got = append(got, name)
		}
	}
	if slices.Sort(want); !slices.Equal(got, want) {
		t.Errorf("files %v, want %v", got, want)
	}
}

func TestFilter_HasEveryKeyAndFewOthers(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4, 5, 10, 100, 1000, 30_000, 200_000} {
		rng := rand.New(rand.NewPCG(uint64(n), 1))
		keys := make([]uint64, n)
		for i := range keys {
			keys[i] = rng.Uint64()
		}
		b, err := makeFilter(slices.Clone(keys))
		if err != nil {
			t.Fatalf("%d keys: %v", n, err)
		}
		f, err := parseFilter(b)
		if err != nil {
			t.Fatalf("%d keys: %v", n, err)
		}
		for _, k := range keys {
			if !f.has(k) {
				t.Fatalf("%d keys: one is denied", n)
			}
		}
		wrong := 0
		for range 200_000 {
			if f.has(rng.Uint64()) {
				wrong++
			}
		}
		if wrong > 20 { // 3 of 200,000 are to be expected
			t.Errorf("%d keys: %d of 200,000 others may be there", n, wrong)
		}
		if n >= 200_000 && len(b) > n*19/8 {
			t.Errorf("%d keys take %d bytes", n, len(b))
		}
	}
}

// Our way of asking is the library's.
func TestFilter_AnswersLikeTheLibrary(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	keys := make([]uint64, 5000)
	for i := range keys {
		keys[i] = rng.Uint64()
	}
	made, err := xorfilter.NewBinaryFuse[uint16](slices.Clone(keys))
	if err != nil {
		t.Fatal(err)
	}
	b, err := makeFilter(keys)
	if err != nil {
		t.Fatal(err)
	}
	f, err := parseFilter(b)
	if err != nil {
		t.Fatal(err)
	}
	for range 3_000_000 {
		if k := rng.Uint64(); f.has(k) != made.Contains(k) {
			t.Fatalf("key %d: %t", k, f.has(k))
		}
	}
}

func FuzzParseFilter(f *testing.F) {
	b, err := makeFilter([]uint64{1, 2, 3})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b, uint64(1))
	f.Add(b[:filterHead], uint64(2))
	f.Fuzz(func(_ *testing.T, b []byte, key uint64) {
		if p, err := parseFilter(b); err == nil {
			p.has(key) // it must not read beyond its end
		}
	})
}

func TestChooseMerge(t *testing.T) {
	const hour = dedup.Time(time.Hour)
	now := 1000 * hour
	hot := func(n int, newest dedup.Time, keys uint64) table {
		return table{Name: fmt.Sprintf("hot-%06d.db", n), Newest: newest, Made: now + dedup.Time(n), Keys: keys}
	}
	cold := func(day, n int, made dedup.Time, keys uint64) table {
		return table{Name: fmt.Sprintf("cold-2026-01-%02d-%d.db", day, n), Made: made, Keys: keys}
	}
	many := func(n int) (all []table) {
		for i := range n {
			all = append(all, hot(i, now, 1))
		}
		return all
	}
	for _, tc := range []struct {
		name string
		in   []table
		want string
	}{
		{"nothing", nil, ""},
		{"young hot files stay", []table{hot(1, now-hour, 1), hot(2, now, 1)}, ""},
		{"old ones go, the oldest first", []table{hot(2, now-3*hour, 1), hot(1, now-4*hour, 1), hot(3, now, 1)}, "hot-000001 hot-000002"},
		{"not past a young one", []table{hot(1, now, 1), hot(2, now-4*hour, 1)}, ""},
		{"as many as one step may take", []table{hot(1, 0, mergeMax-1), hot(2, 0, 1), hot(3, 0, 1)}, "hot-000001 hot-000002"},
		{"at least one", []table{hot(1, 0, 2*mergeMax), hot(2, 0, 1)}, "hot-000001"},
		{"as many as may stay", many(maxHot), ""},
		{"too many", many(maxHot + 2), "hot-000000 hot-000001"},
		{"a day's last place", []table{cold(1, 1, now, 9), cold(1, 2, now, 2), cold(1, 3, now, 3), cold(1, 4, now, 4), hot(1, 0, 1)},
			"cold-2026-01-01-2 cold-2026-01-01-3 cold-2026-01-01-4"},
		{"a day that has places", []table{cold(1, 1, now, 9), cold(1, 2, now, 2), cold(1, 3, now, 3), cold(2, 1, now, 1)}, ""},
		{"a day that is quiet", []table{cold(1, 1, now-30*hour, 9), cold(1, 2, now-24*hour, 2), cold(2, 1, 0, 1)},
			"cold-2026-01-01-2 cold-2026-01-01-1"},
		{"a day that is not yet", []table{cold(1, 1, now-30*hour, 9), cold(1, 2, now-24*hour+1, 2)}, ""},
	} {
		take, rest := chooseMerge(tc.in, now-2*hour, now)
		if got := strings.ReplaceAll(strings.Join(take, " "), ".db", ""); got != tc.want || len(take)+len(rest) != len(tc.in) {
			t.Errorf("%s: %s, want %s; %d stay of %d", tc.name, got, tc.want, len(rest), len(tc.in))
		}
	}
}

func TestMove_TakesSettledKeysOutOfMemory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dedup")
	s := openWith(t, Config{Dir: dir}, lazyMachine())
	want := []dedup.Record{settle(t, s, "a"), settle(t, s, "b")}
	waits := mustDo(t, s, testKey("crm", "waits"), dedup.Put{State: dedup.Waiting, Due: 1}).Record
	s.cfg.Fault = func(point string) {
		if n := s.Stats().Keys; point == "move-published" && n != 3 {
			t.Errorf("%d keys while some are in two places", n)
		}
	}
	if step := sealAndMove(t, s); step.Keys != 2 || step.Carried != 1 || len(step.Took) != 1 {
		t.Errorf("step %+v", step)
	}
	if s.index.keys != 1 {
		t.Errorf("%d keys in memory", s.index.keys)
	}
	st := s.Stats()
	if st.Keys != 3 || st.Parts["hot"].Keys != 2 || st.Parts["journal"].Keys != 1 || st.Parts["hot"].Oldest != min(want[0].Expires, want[1].Expires) {
		t.Errorf("stats %+v", st)
	}
	wantFiles(t, dir, "journal-000001.log", "journal-000002.log", "hot-000001.db")
	for range 2 {
		for _, r := range append(want, waits) {
			if got, ok, err := s.Get(t.Context(), r.Key); got != r || !ok || err != nil {
				t.Errorf("got %+v, %t, %v", got, ok, err)
			}
		}
		if v := mustDo(t, s, want[0].Key, durable).Verdict; v != dedup.AlreadyDone {
			t.Errorf("a duplicate is %v", v)
		}
		if err := errors.Join(s.Check(t.Context()), s.Close()); err != nil {
			t.Fatal(err)
		}
		s = openWith(t, Config{Dir: dir}, lazyMachine())
	}
}

// What was changed first is listed first, also when it was carried since, and in a
// later life.
func TestMove_CarriedRecordsKeepTheirPlaceInLists(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dedup")
	s := openWith(t, Config{Dir: dir}, lazyMachine())
	want := []string{"c", "a", "b", "d"}
	put := func(id string) { mustDo(t, s, testKey("crm", id), dedup.Put{State: dedup.Dead, Seq: 1}) }
	put("c")
	put("a")
	if _, err := s.Seal(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	put("b")
	mustStep(t, s.Move)
	put("d")
	wantList := func() {
		t.Helper()
		var got []string
		for cursor, pages := "", 0; cursor != "" || pages == 0; pages++ {
			page, next, err := s.List(t.Context(), dedup.Filter{}, cursor, 1)
			if err != nil || pages > 5 {
				t.Fatalf("page %d: %v", pages, err)
			}
			for _, r := range page {
				got = append(got, r.Key.Tuple)
			}
			cursor = next
		}
		if !slices.EqualFunc(got, want, func(tuple, id string) bool { return tuple == testKey("crm", id).Tuple }) {
			t.Errorf("listed %q", got)
		}
	}
	wantList()
	for range 2 {
		if err := errors.Join(s.Check(t.Context()), s.Close()); err != nil {
			t.Fatal(err)
		}
		s = openWith(t, Config{Dir: dir}, lazyMachine())
		mustStep(t, s.Move)
		wantList()
	}
}

// Otherwise records that nobody settles would fill one journal after the other.
func TestSeal_CarriedRecordsDoNotCount(t *testing.T) {
	m := lazyMachine()
	m.journalMax = 4000
	s := openWith(t, Config{Dir: filepath.Join(t.TempDir(), "dedup")}, m)
	for i := range 100 {
		mustDo(t, s, testKey("crm", fmt.Sprint(i)), dedup.Put{State: dedup.Dead, Seq: 1})
	}
	sealAndMove(t, s)
	before := s.writer.journal.number
	if s.writer.journal.size <= m.journalMax {
		t.Errorf("a journal of %d bytes holds them all", s.writer.journal.size)
	}
	if sealed, err := s.Seal(t.Context(), 0); sealed || err != nil {
		t.Errorf("sealed %t, %v", sealed, err)
	}
	settle(t, s, "new")
	if n := s.writer.journal.number; n != before {
		t.Errorf("goes on in journal %d after %d", n, before)
	}
	if sealed, err := s.Seal(t.Context(), time.Hour); sealed || err != nil {
		t.Errorf("sealed while young: %t, %v", sealed, err)
	}
	if sealed, err := s.Seal(t.Context(), 0); !sealed || err != nil {
		t.Errorf("not sealed: %t, %v", sealed, err)
	}
}

// Case 43: at no moment of a hand-over is a settled key taken for a new one, nor
// an open one for settled.
func TestSteps_NoMomentWithoutTheRecord(t *testing.T) {
	s := openWith(t, Config{Dir: filepath.Join(t.TempDir(), "dedup")}, lazyMachine())
	var want []dedup.Record
	for i := range 300 {
		want = append(want, settle(t, s, fmt.Sprint("k", i)))
	}
	open := mustDo(t, s, testKey("crm", "open"), dedup.Put{State: dedup.Waiting, Seq: 1, Due: dedup.At(time.Now().Add(time.Hour))}).Record
	stop := make(chan struct{})
	var askers sync.WaitGroup
	for n := range 4 {
		askers.Go(func() {
			for i := n; ; i = (i + 1) % len(want) {
				select {
				case <-stop:
					return
				default:
				}
				got, ok, err := s.Get(t.Context(), want[i].Key)
				if got != want[i] || !ok || err != nil {
					t.Errorf("got %+v, %t, %v", got, ok, err)
					return
				}
				if res, err := s.Do(t.Context(), want[i].Key, durable); res.Verdict != dedup.AlreadyDone || err != nil {
					t.Errorf("a duplicate is %v, %v", res.Verdict, err)
					return
				}
				if list, _, err := s.List(t.Context(), dedup.Filter{States: []dedup.State{dedup.Waiting}}, "", 10); len(list) != 1 || list[0] != open || err != nil {
					t.Errorf("open: %+v, %v", list, err)
					return
				}
			}
		})
	}
	for i := range 12 {
		settle(t, s, fmt.Sprint("more", i))
		sealAndMove(t, s)
		if i%3 == 2 {
			mergeAll(t, s)
			mustStep(t, s.Expire)
			mustStep(t, func(ctx context.Context) (Step, error) { return s.Unlink(ctx, 0) })
		}
	}
	close(stop)
	askers.Wait()
	if err := s.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestExpire_GivesSpaceBackAfterAGrace(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dedup")
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	cfg := Config{Dir: dir, Now: func() time.Time { return now }}
	s := openWith(t, cfg, lazyMachine())
	old := settle(t, s, "an hour")
	key := testKey("crm", "days")
	g := mustDo(t, s, key, durable).Record
	kept := mustDo(t, s, key, dedup.Commit{Fence: g.Fence, Retain: 48 * time.Hour, Outcome: dedup.OutcomeDone}).Record
	sealAndMove(t, s)
	if step := mergeAll(t, s); len(step.Made) != 2 {
		t.Errorf("merged %+v", step)
	}
	if step := mustStep(t, s.Expire); len(step.Took) != 0 {
		t.Errorf("expired before the horizon: %+v", step)
	}
	if err := s.MoveHorizon(t.Context(), old.Expires); err != nil {
		t.Fatal(err)
	}
	if step := mustStep(t, s.Expire); len(step.Took) != 0 {
		t.Errorf("expired at the horizon: %+v", step)
	}
	if err := s.MoveHorizon(t.Context(), old.Expires+1); err != nil {
		t.Fatal(err)
	}
	if step := mustStep(t, s.Expire); step.Expired != 1 || !slices.Equal(step.Took, []string{"cold-2026-05-01-1.db"}) {
		t.Errorf("expired %+v", step)
	}
	now = now.Add(time.Hour - 1)
	unlink := func(grace time.Duration) Step {
		t.Helper()
		return mustStep(t, func(ctx context.Context) (Step, error) { return s.Unlink(ctx, grace) })
	}
	if step := unlink(time.Hour); len(step.Took) != 0 {
		t.Errorf("unlinked early: %+v", step)
	}
	if err := s.Close(); err != nil { // what is to be unlinked is known to the next life
		t.Fatal(err)
	}
	s = openWith(t, cfg, lazyMachine())
	now = now.Add(1)
	if step := unlink(time.Hour); len(step.Took) != 3 {
		t.Errorf("unlinked %+v", step)
	}
	wantFiles(t, dir, "cold-2026-05-03-1.db", "journal-000003.log")
	if got, ok, err := s.Get(t.Context(), kept.Key); got != kept || !ok || err != nil {
		t.Errorf("got %+v, %t, %v", got, ok, err)
	}
	if _, ok, err := s.Get(t.Context(), old.Key); ok || err != nil {
		t.Errorf("expired: %t, %v", ok, err)
	}
	if err := s.MoveHorizon(t.Context(), kept.Expires+1); err != nil {
		t.Fatal(err)
	}
	mustStep(t, s.Expire)
	if step := unlink(0); len(step.Took) != 1 {
		t.Errorf("unlinked at once %+v", step)
	}
	if st := s.Stats(); st.Keys != 0 || st.DiskBytes != headSize {
		t.Errorf("stats %+v", st)
	}
}

// A key that was claimed again after its record had expired has the new one, in
// whatever file either of them is.
func TestMerge_TheLatestRecordOfAKeyCounts(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dedup")
	s := openWith(t, Config{Dir: dir}, lazyMachine())
	first := settle(t, s, "k")
	keep := testKey("crm", "keep")
	g := mustDo(t, s, keep, durable).Record
	mustDo(t, s, keep, dedup.Commit{Fence: g.Fence, Retain: 2 * time.Hour, Outcome: dedup.OutcomeDone})
	sealAndMove(t, s)
	if err := s.MoveHorizon(t.Context(), first.Expires+1); err != nil {
		t.Fatal(err)
	}
	second := mustDo(t, s, first.Key, durable).Record
	second = mustDo(t, s, first.Key, dedup.Commit{Fence: second.Fence, Retain: 3 * time.Hour, Outcome: dedup.OutcomeDone}).Record
	for _, do := range []func(){func() {}, func() { sealAndMove(t, s) }, func() { mergeAll(t, s) }} {
		do()
		if got, ok, err := s.Get(t.Context(), first.Key); got != second || !ok || err != nil {
			t.Errorf("got %+v, %t, %v", got, ok, err)
		}
		if err := s.Check(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
