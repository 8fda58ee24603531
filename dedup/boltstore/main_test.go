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
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for {
				id := strconv.FormatUint(rand.Uint64(), 36)
				if err := pairOf(s, id); err != nil {
					fmt.Fprintln(os.Stderr, err)
					return
				}
				mu.Lock()
				fmt.Println(id)
				mu.Unlock()
			}
		})
	}
	callers.Wait()
	return errors.New("a caller stopped")
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
func runChild(t *testing.T, dir, point string, after, keys int) []string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childDir+"="+dir, childPoint+"="+point, childAfter+"="+strconv.Itoa(after))
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
	for _, id := range ids {
		if r, ok, err := s.Get(t.Context(), testKey("crm", id)); !ok || err != nil || r.State != dedup.Done {
			t.Errorf("%s was answered and is %v, %t, %v", id, r.State, ok, err)
		}
	}
	if err := errors.Join(s.Check(t.Context()), s.Close()); err != nil {
		t.Error(err)
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
