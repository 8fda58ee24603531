package boltstore

import (
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"idemd/dedup"
)

// What a caller found in the tables is not good any more when they have changed.
func TestDo_LooksAgainWhenTheTablesHaveChanged(t *testing.T) {
	s := openWith(t, Config{Dir: filepath.Join(t.TempDir(), "dedup")}, lazyMachine())
	key := testKey("crm", "k")
	r := &request{done: make(chan struct{}, 1), key: key, hash: s.machine.hash(key), handler: "crm", op: durable}
	s.foresee(r)
	settle(t, s, "k")
	sealAndMove(t, s)
	if s.index.keys != 0 {
		t.Fatalf("%d keys in memory", s.index.keys)
	}
	if err := s.ask(t.Context(), r); err != nil || r.err != nil || r.result.Verdict != dedup.AlreadyDone {
		t.Errorf("%v, %v, %v", r.result.Verdict, r.err, err)
	}
}

// Files are closed when the last reader who may use them is out.
func TestSteps_WaitForReaders(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := openWith(t, Config{Dir: filepath.Join(root, "dedup")}, lazyMachine())
		want := settle(t, s, "k")
		if _, err := s.Seal(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		for _, step := range []func(*testing.T) Step{
			func(t *testing.T) Step { return mustStep(t, s.Move) },
			func(t *testing.T) Step { return mergeAll(t, s) },
			func(t *testing.T) Step { return mustStep(t, s.Expire) },
		} {
			s.mu.RLock()
			tables, group := s.tables, s.readers
			var places []located
			for _, r := range s.index.refs(nil, want.Key.Hash) {
				places = append(places, s.locate(r))
			}
			group.Add(1)
			s.mu.RUnlock()
			done := make(chan Step, 1)
			go func() { done <- step(t) }()
			time.Sleep(time.Minute) // a step rests in between
			synctest.Wait()
			got, err := recall(tables, want.Key.Hash, want.Key.Tuple)
			for _, l := range places {
				got, err = l.load()
			}
			if err != nil || got == nil || *got != want {
				t.Errorf("a reader of before got %+v, %v", got, err)
			}
			select {
			case <-done:
				t.Error("the step did not wait")
				return
			default:
			}
			group.Done()
			if st := <-done; len(st.Took) != 1 {
				t.Errorf("step %+v", st)
			}
			if len(s.tables) == 0 {
				return
			}
			if !s.tables[0].hot() {
				if err := s.MoveHorizon(t.Context(), want.Expires+1); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

// A copy's CHECKPOINT, and its horizon, may be older than its files: then two
// records of a key may count, and the later one is its record.
func TestMerge_TheLatestRecordCountsUnderAnOlderHorizon(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dedup")
	s := openWith(t, Config{Dir: dir}, lazyMachine())
	first := settle(t, s, "k")
	settle(t, s, "other")
	sealAndMove(t, s)
	if err := s.MoveHorizon(t.Context(), first.Expires+1); err != nil {
		t.Fatal(err)
	}
	second := mustDo(t, s, first.Key, durable).Record
	second = mustDo(t, s, first.Key, dedup.Commit{Fence: second.Fence, Retain: 3 * time.Hour, Outcome: dedup.OutcomeDone}).Record
	sealAndMove(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	var mark checkpoint
	if err := readText(dir, checkpointName, &mark); err != nil {
		t.Fatal(err)
	}
	mark.Horizon = 0
	if err := s.machine.writeText(dir, checkpointName, mark); err != nil {
		t.Fatal(err)
	}
	s = openWith(t, Config{Dir: dir}, lazyMachine())
	for range 2 {
		if got, ok, err := s.Get(t.Context(), first.Key); got != second || !ok || err != nil {
			t.Errorf("got %+v, %t, %v", got, ok, err)
		}
		mergeAll(t, s)
	}
}

// A key that is claimed again while its expired record is on its way into a table
// keeps the new record.
func TestMove_AKeyThatIsClaimedMeanwhileStays(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dedup")
	s := openWith(t, Config{Dir: dir}, lazyMachine())
	first := settle(t, s, "k")
	settle(t, s, "other")
	var second dedup.Record
	s.cfg.Fault = func(point string) {
		if point == "move-made" {
			if err := s.MoveHorizon(t.Context(), first.Expires+1); err != nil {
				t.Error(err)
			}
			second = settle(t, s, "k")
		}
	}
	if step := sealAndMove(t, s); step.Keys != 2 {
		t.Errorf("step %+v", step)
	}
	if got, _, err := s.Get(t.Context(), first.Key); got != second || second.Fence <= first.Fence || err != nil {
		t.Errorf("got %+v, %v", got, err)
	}
	if err := s.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestMove_LeavesBehindWhatHasExpired(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dedup")
	s := openWith(t, Config{Dir: dir}, lazyMachine())
	r := settle(t, s, "k")
	if err := s.MoveHorizon(t.Context(), r.Expires+1); err != nil {
		t.Fatal(err)
	}
	if step := sealAndMove(t, s); step.Expired != 1 || step.Keys != 0 || len(step.Made) != 0 {
		t.Errorf("step %+v", step)
	}
	if n := s.Stats().Keys; n != 0 {
		t.Errorf("%d keys", n)
	}
	wantFiles(t, dir, "journal-000001.log", "journal-000002.log")
	if err := s.Check(t.Context()); err != nil {
		t.Error(err)
	}
}
