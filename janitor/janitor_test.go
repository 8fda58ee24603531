package janitor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

func newJanitor(t *testing.T, tasks ...Task) *Janitor {
	t.Helper()
	j, err := New(Config{Tasks: tasks, Dir: filepath.Join(t.TempDir(), "janitor")})
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// counting is a task of three steps a run.
func counting(name string, every time.Duration, steps *int) Task {
	return Task{Name: name, Every: every, Step: func(context.Context) (Done, error) {
		*steps++
		return Done{Examined: 10, Removed: 2, Bytes: 100, Left: uint64(*steps), More: *steps%3 != 0}, nil
	}}
}

func TestJanitor_RunsEachTaskInItsPeriod(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var often, seldom int
		j, err := New(Config{Dir: dir, Tasks: []Task{counting("often", time.Minute, &often), counting("seldom", time.Hour, &seldom)}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Hour+30*time.Second)
		defer stop()
		j.Run(ctx)
		if often < 3*59 || often > 3*60 || seldom != 3 {
			t.Errorf("%d and %d steps in an hour", often, seldom)
		}
		reports, err := j.Reports("seldom", time.Time{}, 10)
		want := Report{Task: "seldom", Steps: 3, Examined: 30, Removed: 6, Bytes: 300, Left: 3}
		if err != nil || len(reports) != 1 {
			t.Fatalf("reports %+v, %v", reports, err)
		}
		want.Began, want.Took = reports[0].Began, 2*DefaultRest
		if reports[0] != want {
			t.Errorf("report %+v, want %+v", reports[0], want)
		}
	})
}

// A task that hangs or fails is overdue after three periods, and not before.
func TestJanitor_SaysWhatIsOverdue(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("no")
		j, err := New(Config{Dir: dir, Tasks: []Task{{Name: "fails", Every: time.Minute, Step: func(context.Context) (Done, error) {
			return Done{}, broken
		}}}})
		if err != nil {
			t.Fatal(err)
		}
		for minutes, want := range map[int]bool{2: false, 4: true} {
			ctx, stop := context.WithTimeout(t.Context(), time.Duration(minutes)*time.Minute)
			if minutes == 2 {
				j.set(0, func(s *state) { s.good = time.Now() })
			} else {
				j.set(0, func(s *state) { s.good = time.Now().Add(-time.Second) })
			}
			j.Run(ctx)
			stop()
			if got := j.States()[0]; got.Overdue != want || got.Last == nil || got.Last.Error != "no" {
				t.Errorf("after %d minutes: %+v", minutes, got)
			}
		}
	})
}

func TestJanitor_RunNow(t *testing.T) {
	var steps int
	j := newJanitor(t, counting("a", time.Hour, &steps))
	if r, err := j.RunNow(t.Context(), "a"); err != nil || r.Steps != 3 {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := j.RunNow(t.Context(), "b"); !errors.Is(err, ErrNoTask) {
		t.Errorf("error %v", err)
	}
}

// A cut run is neither a success nor a report.
func TestJanitor_StopsInTheMiddle(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	j := newJanitor(t, Task{Name: "long", Every: time.Hour, Step: func(context.Context) (Done, error) {
		stop()
		return Done{More: true}, nil
	}})
	if _, err := j.RunNow(ctx, "long"); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if all, err := j.Reports("", time.Time{}, 10); err != nil || len(all) != 0 {
		t.Errorf("reports %v, %v", all, err)
	}
}

func TestReports_AreKeptForNinetyDays(t *testing.T) {
	rs, err := openReports(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	began := time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)
	for _, days := range []int{0, 1, 90, 91} {
		if err := rs.add(Report{Task: "a", Began: began.AddDate(0, 0, days)}); err != nil {
			t.Fatal(err)
		}
	}
	all, err := rs.list("", time.Time{}, 10)
	if err != nil || len(all) != 3 || !all[2].Began.Equal(began.AddDate(0, 0, 1)) || !all[0].Began.Equal(began.AddDate(0, 0, 91)) {
		t.Errorf("%+v, %v", all, err)
	}
}

// Any damage costs the reports that it hits, and nothing else.
func TestReports_DamagedLinesAreLeftOut(t *testing.T) {
	rs, err := openReports(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	began := time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)
	for range 3 {
		if err := rs.add(Report{Task: "a", Began: began}); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(rs.dir, reportFile(began))
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range whole {
		b := append([]byte(nil), whole...)
		b[i] ^= 4
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if all, err := rs.list("", time.Time{}, 10); err != nil || len(all) > 2 {
			t.Fatalf("byte %d: %d reports, %v", i, len(all), err)
		}
	}
}
