package boltstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"idemd/dedup"
)

// The environment of the child process: the test binary run once more.
const (
	childDir   = "BOLTSTORE_CHILD_DIR"
	childPoint = "BOLTSTORE_CHILD_POINT" // dies here
	childAfter = "BOLTSTORE_CHILD_AFTER" // at the n-th time
	childTidy  = "BOLTSTORE_CHILD_TIDY"  // if set, steps run beside the pairs
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		if err := child(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// child makes pairs until it is killed, and prints each key whose commit was
// answered. Its journals are small, so that it dies between them, too, and so is
// the time between two checkpoints.
func child(dir string) error {
	after, err := strconv.Atoi(os.Getenv(childAfter))
	if err != nil {
		return err
	}
	var mu sync.Mutex
	fault := func(point string) {
		mu.Lock()
		defer mu.Unlock()
		if point == os.Getenv(childPoint) {
			if after--; after == 0 {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
		}
	}
	s, err := open(context.Background(), Config{Dir: dir, Fault: fault}, &machine{journalMax: 32 << 10, checkpoint: 20 * time.Millisecond})
	if err != nil {
		return err
	}
	tell := func(id string) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Println(id)
	}
	var callers sync.WaitGroup
	if os.Getenv(childTidy) != "" {
		if err := leaveOpen(s, tell); err != nil {
			return err
		}
		callers.Go(func() {
			if err := tidyForEver(s); err != nil {
				fmt.Fprintln(os.Stderr, "tidy:", err)
			}
		})
	}
	for range 8 {
		callers.Go(func() {
			for {
				id := strconv.FormatUint(rand.Uint64(), 36)
				if err := pairOf(s, id); err != nil {
					fmt.Fprintln(os.Stderr, err)
					return
				}
				tell(id)
			}
		})
	}
	callers.Wait()
	return errors.New("a caller stopped")
}

// leaveOpen makes records that nobody settles; their ids begin with their states.
func leaveOpen(s *Store, tell func(string)) error {
	for _, state := range []dedup.State{dedup.Waiting, dedup.Dead, dedup.Started} {
		for range 20 {
			id := state.String() + "-" + strconv.FormatUint(rand.Uint64(), 36)
			op := dedup.Op(dedup.Put{State: state, Effect: dedup.Irrevocable, Seq: 1, Due: dedup.At(time.Now().Add(time.Hour))})
			if state == dedup.Started {
				op = durable
			}
			if _, err := s.Do(context.Background(), testKey("crm", id), op); err != nil {
				return err
			}
			tell(id)
		}
	}
	return nil
}

// tidyForEver does all steps over and over. Each time a few records expire that have
// a day of their own.
func tidyForEver(s *Store) error {
	ctx, began := context.Background(), time.Now().Add(-100*time.Hour)
	for n := time.Duration(0); ; n++ {
		horizon := began.Add(n * 10 * time.Minute)
		if at := s.Horizon().Std(); at.After(horizon) { // of an earlier life
			began, horizon = at, at.Add(n*10*time.Minute)
		}
		for range 5 {
			put := dedup.Put{State: dedup.Done, Effect: dedup.Retryable, Retain: time.Until(horizon) + 5*time.Minute}
			if _, err := s.Do(ctx, testKey("crm", "short"+strconv.FormatUint(rand.Uint64(), 36)), put); err != nil {
				return err
			}
		}
		if _, err := s.Seal(ctx, 0); err != nil {
			return err
		}
		for _, do := range []func() (Step, error){
			func() (Step, error) { return s.Move(ctx) },
			func() (Step, error) { return s.Merge(ctx, dedup.At(time.Now())) },
			func() (Step, error) { return Step{}, s.MoveHorizon(ctx, dedup.At(horizon.Add(10*time.Minute))) },
			func() (Step, error) { return s.Expire(ctx) },
			func() (Step, error) { return s.Unlink(ctx, 0) },
		} {
			for {
				step, err := do()
				if err != nil {
					return err
				}
				if !step.More {
					break
				}
			}
		}
	}
}

func pairOf(s *Store, id string) error {
	ctx, key := context.Background(), testKey("crm", id)
	effect := dedup.Irrevocable
	if rand.IntN(2) == 0 {
		effect = dedup.Retryable
	}
	g, err := s.Do(ctx, key, dedup.Acquire{Effect: effect, Owner: dedup.InProc, Seq: 1})
	if err != nil || g.Verdict != dedup.Granted {
		return fmt.Errorf("acquire: %v, %w", g.Verdict, err)
	}
	_, err = s.Do(ctx, key, dedup.Commit{Fence: g.Record.Fence, Outcome: dedup.OutcomeDone, Retain: time.Hour})
	return err
}

// runChild runs the child until it dies, which it does at point, or when it has
// printed the given number of keys. It gives those keys.
func runChild(t *testing.T, dir, point string, after, keys int, more ...string) []string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childDir+"="+dir, childPoint+"="+point, childAfter+"="+strconv.Itoa(after))
	cmd.Env = append(cmd.Env, more...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var done []string
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		done = append(done, strings.TrimSpace(lines.Text()))
		if len(done) == keys {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != -1 {
		t.Fatalf("the child was not killed: %v", err)
	}
	return done
}

// wantAll opens the store in dir and wants every one of ids to be settled.
func wantAll(t *testing.T, dir string, ids []string) {
	t.Helper()
	s, err := Open(t.Context(), Config{Dir: dir, MustExist: true})
	if err != nil {
		t.Fatalf("open after the kill: %v", err)
	}
	wantStates(t, s, ids)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if name := e.Name(); name != manifestName && name != checkpointName && !s.writer.names.knows(name) {
			t.Errorf("%s is left over", name)
		}
	}
	if err := errors.Join(s.Check(t.Context()), s.Close()); err != nil {
		t.Error(err)
	}
}

// wantStates wants every one of ids to be settled, or in the state that its id tells.
func wantStates(t *testing.T, s *Store, ids []string) {
	t.Helper()
	for _, id := range ids {
		want := dedup.Done
		if state, _, told := strings.Cut(id, "-"); told {
			if err := want.UnmarshalText([]byte(state)); err != nil {
				t.Fatal(err)
			}
		}
		if r, ok, err := s.Get(t.Context(), testKey("crm", id)); !ok || err != nil || r.State != want {
			t.Errorf("%s was answered and is %v, %t, %v", id, r.State, ok, err)
		}
	}
}

// Cases 20, 27: what was answered is there after kill -9, wherever it strikes.
func TestStore_AnsweredCommitsSurviveKill9(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dedup")
	var all []string
	for round := range 10 {
		done := runChild(t, dir, "", 0, 50+rand.IntN(500))
		if len(done) == 0 {
			t.Fatalf("round %d: nothing was answered", round)
		}
		all = append(all, done...)
		wantAll(t, dir, all)
	}
}

func TestStore_AnsweredCommitsSurviveADeathAtEveryPoint(t *testing.T) {
	for _, point := range []string{"before-write", "after-write", "after-sync", "after-manifest", "after-checkpoint"} {
		for _, after := range []int{1, 2, 5} {
			t.Run(point+strconv.Itoa(after), func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "dedup")
				done := runChild(t, dir, point, after, 0)
				done = append(done, runChild(t, dir, point, after, 0)...)
				wantAll(t, dir, done)
			})
		}
	}
}
