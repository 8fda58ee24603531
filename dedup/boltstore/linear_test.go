package boltstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"idemd/dedup"
	"idemd/event"
)

// What every history is made of. Clients know fences that are long outdated, for
// they share all that anybody was ever told.
const (
	linearClients = 8
	linearOps     = 6 // of each client in each of two lives
	linearKeys    = 2
)

// linearIn is one operation as its caller sees it. Without an op it moves the
// horizon, for every key: beyond all records that are kept for linearShort, and
// short of all others.
type linearIn struct {
	key   int
	op    dedup.Op
	fence dedup.Fence // of op; 0 for Acquire
	epoch uint32      // of the store that was asked
}

// linearOut is what it was told. Lost means nothing: the store was closed.
type linearOut struct {
	lost    bool
	fenced  bool
	verdict dedup.Verdict
	state   dedup.State
	fence   dedup.Fence
}

// linearState is all that the protocol promises about one key. It is written
// down here once more, and does not use Decide.
type linearState struct {
	state dedup.State
	fence dedup.Fence // 0: a grant whose answer was lost
	far   bool        // WAITING for long
	short bool        // DONE, kept for linearShort
	moved bool        // the horizon has been moved
	max   dedup.Fence // the greatest that anybody was told
}

// grant moves on to a new fence: greater than any that was told before.
func (s linearState) grant(to dedup.State, out linearOut) (bool, linearState) {
	if !out.lost && out.fence <= s.max {
		return false, s
	}
	s.state, s.fence, s.far = to, out.fence, false
	s.max = max(s.max, out.fence)
	return true, s
}

// The times of the histories, which take seconds.
const (
	linearShort   = time.Nanosecond // how long some records are kept
	linearLong    = 1000 * time.Hour
	linearHorizon = time.Hour // from the beginning
)

func linearStep(s linearState, in linearIn, out linearOut) (bool, linearState) {
	if in.op == nil {
		s.moved = true // one that was lost counts at some time, or after all others
		return true, s
	}
	if s.state == dedup.Done && s.short && s.moved {
		s.state, s.fence = dedup.Free, 0
	}
	if !out.lost && s.fence == 0 && s.state != dedup.Free && out.state == s.state {
		s.fence, s.max = out.fence, max(s.max, out.fence) // now it is known
	}
	if acquire, ok := in.op.(dedup.Acquire); ok {
		return linearAcquire(s, acquire, out)
	}
	next, holds := s, in.fence == s.fence
	switch op := in.op.(type) {
	case dedup.Commit:
		holds = holds && (s.state == dedup.Started || s.state == dedup.InDoubt || s.state == dedup.Done)
		next.state = dedup.Done
		if s.state != dedup.Done {
			next.short = op.Retain == linearShort
		}
	case dedup.Defer:
		holds = holds && (s.state == dedup.Started || s.state == dedup.Waiting)
		if s.state == dedup.Started {
			next.state, next.far = dedup.Waiting, op.Due > 1
		}
	case dedup.Bury:
		holds = holds && (s.state == dedup.Started || s.state == dedup.Waiting || s.state == dedup.Dead)
		next.state = dedup.Dead
	case dedup.Doubt:
		holds = holds && (s.state == dedup.Started || s.state == dedup.InDoubt)
		next.state = dedup.InDoubt
	case dedup.Expire:
		holds = holds && s.state == dedup.Started && in.fence.Epoch() < in.epoch
		next.state = dedup.InDoubt // the effect is irrevocable
	case dedup.Resolve:
		holds = holds && (s.state == dedup.InDoubt || s.state == dedup.Dead)
		if holds && (out.lost || !out.fenced) {
			return s.grant(dedup.Waiting, out)
		}
	}
	switch {
	case out.lost && !holds:
		return true, s
	case out.lost:
		return true, next
	case !holds:
		return out.fenced && out.state == s.state, s
	}
	return !out.fenced && out.state == next.state, next
}

func linearAcquire(s linearState, _ dedup.Acquire, out linearOut) (bool, linearState) {
	if s.state == dedup.Free || s.state == dedup.Waiting && !s.far {
		if !out.lost && out.verdict != dedup.Granted {
			return false, s
		}
		return s.grant(dedup.Started, out)
	}
	want := map[dedup.State]dedup.Verdict{
		dedup.Started: dedup.Busy, dedup.Waiting: dedup.NotYet, dedup.InDoubt: dedup.Doubtful,
		dedup.Dead: dedup.Buried, dedup.Done: dedup.AlreadyDone,
	}[s.state]
	return out.lost || out.verdict == want && out.fence == s.fence, s
}

func linearModel() porcupine.Model {
	return porcupine.Model{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			parts := make([][]porcupine.Operation, linearKeys)
			for _, o := range history {
				in := o.Input.(linearIn)
				for k := range parts {
					if in.op == nil || in.key == k {
						parts[k] = append(parts[k], o)
					}
				}
			}
			return parts
		},
		Init: func() any { return linearState{} },
		Step: func(state, in, out any) (bool, any) {
			return linearStep(state.(linearState), in.(linearIn), out.(linearOut))
		},
	}
}

// doer is how clients reach the store; a broken one stands in between.
type doer func(ctx context.Context, s *Store, key event.Key, op dedup.Op) (dedup.Result, error)

func fencedDo(ctx context.Context, s *Store, key event.Key, op dedup.Op) (dedup.Result, error) {
	return s.Do(ctx, key, op)
}

// unfencedDo is a store that does not look at fences.
func unfencedDo(ctx context.Context, s *Store, key event.Key, op dedup.Op) (dedup.Result, error) {
	rec, _, err := s.Get(ctx, key)
	if err != nil {
		return dedup.Result{}, err
	}
	switch o := op.(type) {
	case dedup.Commit:
		o.Fence = rec.Fence
		op = o
	case dedup.Defer:
		o.Fence = rec.Fence
		op = o
	case dedup.Bury:
		o.Fence = rec.Fence
		op = o
	case dedup.Doubt:
		o.Fence = rec.Fence
		op = o
	}
	return s.Do(ctx, key, op)
}

// recorder collects a history.
type recorder struct {
	do    doer
	began time.Time

	mu     sync.Mutex
	ops    []porcupine.Operation
	fences [linearKeys][]dedup.Fence
}

// client works until its operations are done or the store is closed.
func (r *recorder) client(ctx context.Context, s *Store, id int, rng *rand.Rand) {
	for range linearOps {
		in := r.choose(s, rng)
		call := time.Since(r.began).Nanoseconds()
		var res dedup.Result
		var err error
		if in.op == nil {
			err = s.MoveHorizon(ctx, dedup.At(r.began.Add(linearHorizon)))
		} else {
			res, err = r.do(ctx, s, testKey("crm", fmt.Sprint("e", in.key)), in.op)
		}
		out := linearOut{fenced: res.Fenced, verdict: res.Verdict, state: res.Record.State, fence: res.Record.Fence}
		end := time.Since(r.began).Nanoseconds()
		if err != nil && !res.Fenced {
			out, end = linearOut{lost: true}, math.MaxInt64
		}
		r.mu.Lock()
		r.ops = append(r.ops, porcupine.Operation{ClientId: id, Input: in, Output: out, Call: call, Return: end})
		if out.fence != 0 {
			r.fences[in.key] = append(r.fences[in.key], out.fence)
		}
		r.mu.Unlock()
		if out.lost {
			return
		}
	}
}

func (r *recorder) choose(s *Store, rng *rand.Rand) linearIn {
	in := linearIn{key: rng.IntN(linearKeys), epoch: s.Epoch()}
	r.mu.Lock()
	if known := r.fences[in.key]; len(known) > 0 {
		in.fence = known[rng.IntN(len(known))]
		if rng.IntN(3) > 0 { // more often one that may still hold
			in.fence = known[len(known)-1]
		}
	}
	r.mu.Unlock()
	if rng.IntN(3*linearOps*linearClients) == 0 {
		in.fence = 0
		return in
	}
	due, retain := dedup.Time(1), linearLong
	if rng.IntN(2) == 0 {
		retain = linearShort
	}
	if rng.IntN(2) == 0 {
		due = dedup.At(time.Now().Add(time.Hour))
	}
	switch n := rng.IntN(12); {
	case n < 5 || in.fence == 0:
		in.fence = 0
		in.op = dedup.Acquire{Effect: dedup.Irrevocable, Owner: dedup.InProc, Seq: 1}
	case n < 6:
		in.op = dedup.Commit{Fence: in.fence, Outcome: dedup.OutcomeDone, Retain: retain}
	case n < 8:
		in.op = dedup.Defer{Fence: in.fence, Due: due, Counts: true}
	case n < 9:
		in.op = dedup.Bury{Fence: in.fence}
	case n < 10:
		in.op = dedup.Doubt{Fence: in.fence}
	case n < 11:
		in.op = dedup.Expire{Fence: in.fence, Due: due}
	default:
		in.op = dedup.Resolve{Fence: in.fence, To: dedup.ResolveRetry}
	}
	return in
}

// linearHistory lets clients work on a store that is closed under them and
// opened again.
func linearHistory(t *testing.T, dir string, seed uint64, do doer) []porcupine.Operation {
	t.Helper()
	r := &recorder{do: do, began: time.Now()}
	for life := range 2 {
		s, err := open(t.Context(), Config{Dir: dir, MustExist: life > 0}, lazyMachine())
		if err != nil {
			t.Fatal(err)
		}
		stop := make(chan struct{})
		var tidy sync.WaitGroup
		if seed%5 == 0 { // they make files, and those take their time
			tidy.Go(func() { tidyUnder(t, s, stop) })
		}
		var clients sync.WaitGroup
		var left atomic.Int64
		left.Store(linearClients)
		half := make(chan struct{})
		for id := range linearClients {
			rng := rand.New(rand.NewPCG(seed, uint64(life*linearClients+id)))
			clients.Go(func() {
				r.client(t.Context(), s, life*linearClients+id, rng)
				if left.Add(-1) == linearClients/2 {
					close(half)
				}
			})
		}
		<-half // the others are cut
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		clients.Wait()
		close(stop)
		tidy.Wait()
	}
	return r.ops
}

// tidyUnder moves and merges what there is while operations run.
func tidyUnder(t *testing.T, s *Store, stop <-chan struct{}) {
	for {
		_, err := s.Seal(t.Context(), 0)
		if err == nil {
			_, err = s.Move(t.Context())
		}
		if err == nil {
			_, err = s.Merge(t.Context(), dedup.At(time.Now()))
		}
		if err == nil {
			_, err = s.Expire(t.Context())
		}
		if errors.Is(err, dedup.ErrClosed) {
			return
		}
		if err != nil {
			t.Error(err)
			return
		}
		select {
		case <-stop:
			return
		default:
		}
	}
}

// Every history of the real store is one that the protocol allows when each
// operation happens at one moment between its call and its answer.
func TestStore_HistoriesAreLinearizable(t *testing.T) {
	const histories, groups = 1000, 10
	for group := range uint64(groups) {
		t.Run(fmt.Sprint("group ", group), func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			for i := range uint64(histories / groups) {
				seed := group*histories + i
				history := linearHistory(t, filepath.Join(root, fmt.Sprint(seed)), seed, fencedDo)
				if porcupine.CheckOperationsTimeout(linearModel(), history, 20*time.Second) != porcupine.Ok {
					t.Fatalf("seed %d: the history of %d operations is not linearizable: %+v", seed, len(history), history)
				}
			}
		})
	}
}

// The check above can fail: a store that does not look at fences is found out.
func TestStore_WithoutFencesIsCaught(t *testing.T) {
	root := t.TempDir()
	for seed := range uint64(100) {
		history := linearHistory(t, filepath.Join(root, fmt.Sprint(seed)), seed, unfencedDo)
		if porcupine.CheckOperationsTimeout(linearModel(), history, 20*time.Second) == porcupine.Illegal {
			t.Logf("caught in history %d", seed+1)
			return
		}
	}
	t.Error("a store without the fence check passed 100 histories")
}
