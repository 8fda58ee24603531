// Package janitor runs periodic tasks in bounded steps, one at a time, and keeps
// a report of each run. It knows nothing of what the tasks do.
package janitor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// Done says what a step did.
type Done struct {
	Examined uint64 // things that were looked at
	Removed  uint64 // of them
	Bytes    int64  // given back to the disk
	Left     uint64 // known to be left for another run
	More     bool   // there is another step to do at once
}

// Task is something to be done again and again. Its steps are bounded and may be
// cut by their context at any time.
type Task struct {
	Name  string // for people: seal, merge, expire
	Every time.Duration
	Frees bool // without it the disk fills up
	Step  func(ctx context.Context) (Done, error)
}

// Report is what one run of a task did.
type Report struct {
	Task     string        `json:"task"`
	Began    time.Time     `json:"began"`
	Took     time.Duration `json:"took_ns"`
	Steps    int           `json:"steps"`
	Examined uint64        `json:"examined"`
	Removed  uint64        `json:"removed"`
	Bytes    int64         `json:"bytes"` // given back to the disk
	Left     uint64        `json:"left"`
	Error    string        `json:"error,omitempty"`
}

// State is how a task stands.
type State struct {
	Task    string        `json:"task"`
	Every   time.Duration `json:"every_ns"`
	Running bool          `json:"running"`
	Frees   bool          `json:"frees"`
	Age     time.Duration `json:"age_ns"`  // since its last success, or since the janitor began
	Overdue bool          `json:"overdue"` // for three periods there was none
	Last    *Report       `json:"last,omitempty"`
}

// overdueAfter is after how many periods without a success a task is overdue.
const overdueAfter = 3

// overdue reports whether a task with this period should have succeeded since.
func overdue(every, age time.Duration) bool { return age > overdueAfter*every }

// Config is what a Janitor needs.
type Config struct {
	Tasks  []Task
	Dir    string        // of the reports; made if it is not there
	Rest   time.Duration // between two steps of a run; DefaultRest when 0
	Logger *slog.Logger  // slog.Default when nil
}

// DefaultRest leaves the disk to others between two steps.
const DefaultRest = 20 * time.Millisecond

// ErrNoTask is returned for a name that no task has.
var ErrNoTask = errors.New("no such task")

// Janitor runs tasks. Its methods may be called from many goroutines.
type Janitor struct {
	cfg     Config
	log     *slog.Logger
	reports *reports
	turn    chan struct{} // held by the run that goes on

	mu     sync.Mutex
	states []state // as Config.Tasks
}

type state struct {
	good    time.Time // when it last succeeded, with its monotonic part
	next    time.Time
	running bool
	last    *Report
}

// New makes a Janitor, all of whose tasks are due a period from now.
func New(cfg Config) (*Janitor, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Rest == 0 {
		cfg.Rest = DefaultRest
	}
	r, err := openReports(cfg.Dir)
	if err != nil {
		return nil, err
	}
	j := &Janitor{cfg: cfg, log: cfg.Logger, reports: r, turn: make(chan struct{}, 1), states: make([]state, len(cfg.Tasks))}
	now := time.Now()
	for i, t := range cfg.Tasks {
		j.states[i] = state{good: now, next: now.Add(t.Every)}
	}
	return j, nil
}

// Run does what is due until ctx ends.
func (j *Janitor) Run(ctx context.Context) {
	for {
		i, wait := j.soonest()
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		if _, err := j.run(ctx, i); err != nil && ctx.Err() == nil {
			j.log.Warn("janitor's task failed, it will be tried again", "task", j.cfg.Tasks[i].Name, "error", err)
		}
	}
}

// soonest gives the task that is due first, and in how long.
func (j *Janitor) soonest() (task int, wait time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for i := range j.states {
		if j.states[i].next.Before(j.states[task].next) {
			task = i
		}
	}
	if len(j.states) == 0 {
		return 0, time.Hour
	}
	return task, time.Until(j.states[task].next)
}

// RunNow runs a task at once, or after the one that is running. The error is the
// task's, ErrNoTask or ctx's.
func (j *Janitor) RunNow(ctx context.Context, name string) (Report, error) {
	for i := range j.cfg.Tasks {
		if j.cfg.Tasks[i].Name == name {
			return j.run(ctx, i)
		}
	}
	return Report{}, fmt.Errorf("%w: %s", ErrNoTask, name)
}

// run does all steps of a task that there are at the moment.
func (j *Janitor) run(ctx context.Context, i int) (Report, error) {
	select {
	case j.turn <- struct{}{}:
		defer func() { <-j.turn }()
	case <-ctx.Done():
		return Report{}, ctx.Err()
	}
	task := &j.cfg.Tasks[i]
	j.set(i, func(s *state) { s.running = true })
	r := Report{Task: task.Name, Began: time.Now()}
	err := j.steps(ctx, task, &r)
	r.Took = time.Since(r.Began)
	r.Began = r.Began.UTC().Round(0)
	if err != nil {
		r.Error = err.Error()
	}
	j.set(i, func(s *state) {
		s.running, s.last, s.next = false, &r, time.Now().Add(task.Every)
		if err == nil {
			s.good = time.Now()
		}
	})
	if ctx.Err() == nil || err == nil {
		if kept := j.reports.add(r); kept != nil {
			j.log.Warn("janitor's report not kept", "task", task.Name, "error", kept)
		}
	}
	return r, err
}

func (j *Janitor) steps(ctx context.Context, task *Task, r *Report) error {
	for {
		done, err := task.Step(ctx)
		r.Steps++
		r.Examined += done.Examined
		r.Removed += done.Removed
		r.Bytes += done.Bytes
		r.Left = done.Left
		if err != nil || !done.More {
			return err
		}
		rest := time.NewTimer(j.cfg.Rest)
		select {
		case <-rest.C:
		case <-ctx.Done():
			rest.Stop()
			return ctx.Err()
		}
	}
}

func (j *Janitor) set(i int, change func(*state)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	change(&j.states[i])
}

// States says how the tasks stand, in their order.
func (j *Janitor) States() []State {
	j.mu.Lock()
	defer j.mu.Unlock()
	all := make([]State, len(j.states))
	for i, s := range j.states {
		t := &j.cfg.Tasks[i]
		age := time.Since(s.good)
		all[i] = State{
			Task: t.Name, Every: t.Every, Running: s.running, Frees: t.Frees,
			Age: age, Overdue: overdue(t.Every, age), Last: s.last,
		}
	}
	return all
}

// Reports gives the reports of a task, of all when it is empty, since a moment,
// newest first, at most limit.
func (j *Janitor) Reports(task string, since time.Time, limit int) ([]Report, error) {
	return j.reports.list(task, since, limit)
}
