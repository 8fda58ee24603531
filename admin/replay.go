package admin

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// ReplayConfig is what Replays need.
type ReplayConfig struct {
	Dir    string             // where batches and replays are kept; made when it is missing
	Logger *slog.Logger       //
	Now    func() time.Time   // time.Now when nil
	Fault  func(point string) // crash points; nil in production
}

// Replays keeps the batches and runs the replays, one at a time, the oldest first.
// A replay publishes nothing: it writes the claim store's records of runs that are
// due now, and only while their handler has nothing better to do. Everything but
// the last moment is on disk: a replay goes on after a restart or a crash, and
// what it had begun before is not begun again, for its records are there.
type Replays struct {
	s       *Server // set by NewServer
	dir     string
	log     *slog.Logger
	now     func() time.Time
	fault   func(string)
	batches *batches

	mu     sync.Mutex
	all    map[string]*Replay
	active string             // id of the one that runs; "" when none does
	cancel context.CancelFunc // ends its present work
	wake   chan struct{}      // holds a token after something has changed
}

// maxReplays is how many replays are remembered; the oldest that are over are
// forgotten first.
const maxReplays = 1000

// NewReplays opens what is kept in cfg.Dir. Nothing runs before Run.
func NewReplays(cfg ReplayConfig) (*Replays, error) {
	r := &Replays{
		dir: cfg.Dir, log: cfg.Logger, now: cfg.Now, fault: cfg.Fault, all: make(map[string]*Replay), wake: make(chan struct{}, 1),
	}
	if r.now == nil {
		r.now = time.Now
	}
	if r.fault == nil {
		r.fault = func(string) {}
	}
	if err := os.MkdirAll(cfg.Dir, 0o750); err != nil {
		return nil, fmt.Errorf("make directory of replays: %w", err)
	}
	if err := r.load(); err != nil {
		return nil, err
	}
	var err error
	r.batches, err = openBatches(cfg.Dir, cfg.Logger)
	return r, err
}

// load reads the replays. Of a file that is damaged the rest does not suffer.
func (r *Replays) load() error {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return fmt.Errorf("list replays: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(r.dir, e.Name())
		switch {
		case strings.HasSuffix(e.Name(), tmpSuffix):
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove unfinished file: %w", err)
			}
		case strings.HasPrefix(e.Name(), "rpl_"):
			text, err := os.ReadFile(path)
			if err != nil {
				return fmt.Errorf("read replay: %w", err)
			}
			rp := &Replay{}
			if err := decodeLine(string(text), rp); err != nil || rp.ID != e.Name() {
				r.log.Error("a replay's file is damaged: the replay does not go on", "file", path, "error", err)
				continue
			}
			r.all[rp.ID] = rp
		}
	}
	return nil
}

// Close ends the use of the directory. Run must have returned.
func (r *Replays) Close() error { return r.batches.close() }

// save puts a replay's state on stable storage. The caller holds mu.
func (r *Replays) save(rp *Replay) error {
	line, err := encodeLine(rp)
	if err == nil {
		err = replaceFile(filepath.Join(r.dir, rp.ID), line)
	}
	if err != nil {
		return fmt.Errorf("save replay %s: %w", rp.ID, err)
	}
	return nil
}

// Start begins a replay. It is kept when Start returns.
func (r *Replays) Start(ctx context.Context, req ReplayRequest, who string) (Replay, error) {
	now := r.now().UTC()
	req, err := r.check(req, now)
	if err != nil {
		return Replay{}, err
	}
	rp := &Replay{
		ID: "rpl_" + strings.ToLower(rand.Text()), Request: req, Who: who, Created: now, State: ReplayQueued, Skipped: map[Skip]uint64{},
	}
	if rp.From, rp.To, err = r.bounds(ctx, &req); err != nil {
		return Replay{}, fmt.Errorf("start replay: %w", err)
	}
	rp.Position = rp.From - min(rp.From, 1)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.save(rp); err != nil {
		return Replay{}, err
	}
	r.all[rp.ID] = rp
	r.log.Info("replay begun", "replay", rp.ID, "who", who, "batch", req.Batch, "handler", req.Handler,
		"since", req.Since, "until", req.Until, "dead", req.Dead, "from", rp.From, "to", rp.To)
	r.forget()
	r.signal()
	return rp.clone(), nil
}

// forget removes the oldest replays that are over, when there are too many. The
// caller holds mu.
func (r *Replays) forget() {
	for _, rp := range r.sorted() {
		if len(r.all) <= maxReplays {
			return
		}
		if !rp.State.Over() {
			continue
		}
		if err := os.Remove(filepath.Join(r.dir, rp.ID)); err != nil {
			r.log.Warn("old replay not removed", "replay", rp.ID, "error", err)
			return
		}
		delete(r.all, rp.ID)
	}
}

// sorted gives all replays, the oldest first. The caller holds mu.
func (r *Replays) sorted() []*Replay {
	return slices.SortedFunc(maps.Values(r.all), func(a, b *Replay) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
}

func (r *Replays) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// clone gives a copy that nobody changes.
func (rp *Replay) clone() Replay {
	c := *rp
	c.Skipped = maps.Clone(rp.Skipped)
	return c
}

// List gives all replays, the newest first.
func (r *Replays) List() []Replay {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := []Replay{}
	for _, rp := range slices.Backward(r.sorted()) {
		list = append(list, rp.clone())
	}
	return list
}

// find gives the replay that word names: its id, or a beginning of it. The caller
// holds mu.
func (r *Replays) find(word string) (*Replay, error) {
	var found *Replay
	for id, rp := range r.all {
		if id != word && (len(word) < minPrefix || !strings.HasPrefix(id, word)) {
			continue
		}
		if found != nil {
			return nil, &Error{CodeAmbiguous, fmt.Sprintf("more than one replay begins with %s", word), "give more of the id"}
		}
		found = rp
	}
	if found == nil {
		return nil, &Error{CodeNotFound, fmt.Sprintf("there is no replay %q", word), "see idemd replay list"}
	}
	return found, nil
}

// Get gives one replay by its id or a unique beginning of it.
func (r *Replays) Get(word string) (Replay, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rp, err := r.find(word)
	if err != nil {
		return Replay{}, err
	}
	return rp.clone(), nil
}

// Act pauses, resumes or cancels a replay. That is kept when Act returns. Runs that
// were begun go on: they are their handler's.
func (r *Replays) Act(word string, action ReplayAction) (Replay, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rp, err := r.find(word)
	if err != nil {
		return Replay{}, err
	}
	if rp.State.Over() {
		return Replay{}, &Error{CodeConflict, fmt.Sprintf("the replay %s is over: it is %s", rp.ID, rp.State), "see idemd replay show"}
	}
	next := rp.clone()
	switch action {
	case PauseReplay:
		next.State = ReplayPaused
	case ResumeReplay:
		if rp.State == ReplayPaused {
			next.State = ReplayQueued
		}
	case CancelReplay:
		next.State, next.Ended = ReplayCanceled, r.now().UTC()
	default:
		return Replay{}, &Error{CodeNotFound, fmt.Sprintf("there is no action %q", action), "pause, resume or cancel"}
	}
	next.Waiting = ""
	if err := r.save(&next); err != nil {
		return Replay{}, err
	}
	*rp = next
	if r.active == rp.ID && rp.State != ReplayRuns {
		r.cancel()
	}
	r.signal()
	return rp.clone(), nil
}

// Run runs replays until ctx ends.
func (r *Replays) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if rp, work, ok := r.next(ctx); ok {
			r.work(work, rp)
			continue
		}
		select {
		case <-r.wake:
		case <-ctx.Done():
		}
	}
}

// next takes the replay whose turn it is, and the context that ends with it.
func (r *Replays) next(ctx context.Context) (rp Replay, work context.Context, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var turn *Replay
	for _, c := range r.sorted() {
		if c.State == ReplayRuns || c.State == ReplayQueued && turn == nil {
			turn = c
			if c.State == ReplayRuns {
				break
			}
		}
	}
	if turn == nil {
		return Replay{}, nil, false
	}
	turn.State = ReplayRuns
	work, r.cancel = context.WithCancel(ctx)
	r.active = turn.ID
	return turn.clone(), work, true
}
