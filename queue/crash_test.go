package queue

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// childEnv makes the test binary a publisher on the directory that it names.
const childEnv = "IDEMD_QUEUE_CRASH_DIR"

// crashChild publishes until it is killed, and prints each event that Publish
// has accepted, one identity a line.
func crashChild(dir string) int {
	ctx := context.Background()
	q, err := Open(ctx, Config{Dir: dir, MaxBytes: testBudget})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	round := os.Getenv("IDEMD_QUEUE_CRASH_ROUND")
	var wg sync.WaitGroup
	for worker := range 16 {
		wg.Go(func() {
			for i := 0; ; i++ {
				ev := newEvent(i)
				ev.Identity.ID = fmt.Sprintf("%s-%d-%d", round, worker, i)
				if _, err := q.Publish(ctx, ev); err != nil {
					fmt.Fprintln(os.Stderr, err)
					return
				}
				fmt.Println(ev.Identity.ID) // one write: lines do not mix
			}
		})
	}
	wg.Wait()
	return 1
}

// runAndKill runs a publisher, kills it after enough events and returns those
// that it has reported.
func runAndKill(t *testing.T, dir string, round, enough int) []string {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+dir, "IDEMD_QUEUE_CRASH_ROUND="+strconv.Itoa(round))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var accepted []string
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		accepted = append(accepted, strings.Clone(lines.Text()))
		if len(accepted) == enough {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); err == nil || len(accepted) < enough {
		t.Fatalf("publisher ended by itself after %d events: %v", len(accepted), err)
	}
	return accepted
}

func TestQueue_KillLosesNoAcceptedEvent(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "queue")
	var accepted []string
	for round := range 3 {
		accepted = append(accepted, runAndKill(t, dir, round, 300+500*round)...)

		q := open(t, Config{Dir: dir, Logger: logOf(t, "Filestore [EVENTS]")}) // the server tells that it was killed
		kept := make(map[string]int)
		if err := q.Scan(t.Context(), 0, func(m Message) (bool, error) {
			kept[m.Event.Identity.ID]++
			return true, nil
		}); err != nil {
			t.Fatal(err)
		}
		for _, id := range accepted {
			if kept[id] != 1 {
				t.Errorf("round %d: event %s is kept %d times, want once", round, id, kept[id])
			}
		}
		closeQueue(t, q)
	}
}
