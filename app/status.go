package app

import (
	"context"
	"fmt"
	"os"
	"time"

	"idemd/admin"
	"idemd/consumer"
	"idemd/dedup"
	"idemd/queue"
	"idemd/receiver"
)

// backend is what the admin API looks into.
func (a *App) backend() admin.Backend {
	if a.refuge != nil {
		return a.quarantineBackend()
	}
	return admin.Backend{
		Store: a.store, Queue: a.queue, Sources: a.adminSources, Handlers: a.adminHandlers,
		Logger: a.log.With("component", "admin"), Replays: a.replays, Status: a.status, Explain: a.explain,
		Suppressions: a.suppressions, Windows: a.windows, Janitor: a.janitorBackend(), Reload: a.askReload, Drops: a.drops, Output: a.cfg.commands().Output,
	}
}

func (a *App) adminSources() map[string]string {
	ids := map[string]string{}
	for _, s := range a.live().cfg.Sources {
		ids[s.Name] = s.ID
	}
	return ids
}

func (a *App) adminHandlers() []admin.Handler {
	now := a.live()
	all := make([]admin.Handler, len(now.specs))
	for i := range now.specs {
		s, pool := &now.specs[i], now.pools[i]
		all[i] = admin.Handler{
			ID: s.ID, Name: s.Name, Effect: s.Effect, Retain: s.Retain, Matches: s.Matches,
			Pause: pool.Pause, Resume: pool.Resume,
			ReplayLimit: s.ReplayLimit, Concurrency: s.Concurrency, Progress: pool.Progress,
			Unrunnable: s.Unrunnable, Room: pool.Room,
		}
	}
	return all
}

// status gives what only the process knows.
func (a *App) status(ctx context.Context) admin.Status {
	now := a.live()
	st := admin.Status{
		Version: a.opts.Version, PID: os.Getpid(), Started: a.began.UTC(), Ready: a.recv.State() == receiver.StateReady,
		ConfigFile: now.cfg.file, Environment: string(now.cfg.Environment), DataDir: a.cfg.DataDir, Listen: a.addr,
	}
	if bytes, err := a.cfg.QueueBytes(); err == nil {
		st.Queue.MaxBytes = bytes
		if q, err := a.queue.State(ctx); err == nil {
			st.Warnings = append(st.Warnings, a.historyWarnings(q.Bytes, bytes)...)
		}
	}
	if why := a.disk.blocked(); why != "" {
		st.Warnings = append(st.Warnings, "events are refused: "+why)
	}
	st.Warnings = append(st.Warnings, a.janitorWarnings()...)
	st.Reload = a.reloads.lastReload()
	st.Warnings = append(st.Warnings, a.reloadWarnings()...)
	counted := a.recv.Stats()
	for i := range now.cfg.Sources {
		c := &now.cfg.Sources[i]
		s := statsOf(counted, c.ID)
		st.Sources = append(st.Sources, sourceStatus(c, &s))
		st.Warnings = append(st.Warnings, sourceWarnings(c, &s)...)
	}
	st.Warnings = append(st.Warnings, a.windowWarnings()...)
	if w := a.sideWarning(); w != "" {
		st.Warnings = append(st.Warnings, w)
	}
	if a.orphans > 0 {
		st.Warnings = append(st.Warnings, fmt.Sprintf("an earlier idemd had left commands running: processes killed at this start: %d", a.orphans))
	}
	for i, pool := range now.pools {
		snap := pool.Snapshot()
		h := handlerStatus(&now.specs[i], snap)
		if pending, err := pool.Pending(ctx); err == nil {
			h.Pending = pending
		}
		st.Handlers = append(st.Handlers, h)
		st.Warnings = append(st.Warnings, handlerWarnings(h.Name, &snap)...)
	}
	return st
}

// statsOf finds a source's counters; during a reload there may be none yet.
func statsOf(all []receiver.SourceStats, id string) receiver.SourceStats {
	for _, s := range all {
		if s.Source == id {
			return s
		}
	}
	return receiver.SourceStats{Source: id}
}

func sourceStatus(c *SourceConfig, s *receiver.SourceStats) admin.SourceStatus {
	counters := map[string]uint64{
		"accepted": s.Accepted, "unparsed": s.Unparsed, "unkeyed": s.Unkeyed, "oversize": s.Oversize,
		"challenges": s.Challenges, "undeclared_repeats": s.Repeats,
		"secret_newest": s.Secrets[0], "secret_previous": s.Secrets[1], "holding": uint64(s.Holding),
	}
	for reason, n := range s.Refused {
		counters["refused_"+string(reason)] = n
	}
	return admin.SourceStatus{Name: c.Name, ID: c.ID, Scheme: c.Scheme, Path: c.Path, Counters: counters}
}

func sourceWarnings(c *SourceConfig, s *receiver.SourceStats) []string {
	var w []string
	if s.Unparsed > 0 {
		w = append(w, fmt.Sprintf("source %s sent %d authentic payloads that were not understood: see \"idemd events list --type unparsed\"", c.Name, s.Unparsed))
	}
	if s.Unkeyed > 0 {
		w = append(w, fmt.Sprintf("source %s sent %d events without an id: duplicates among them are not told", c.Name, s.Unkeyed))
	}
	return w
}

func handlerStatus(spec *consumer.Spec, s consumer.Snapshot) admin.HandlerStatus {
	counters := map[string]uint64{
		"filtered": s.Filtered, "retried": s.Retried, "buried": s.Buried, "doubted": s.Doubted, "fenced": s.Fenced,
		"lost_grants": s.LostGrants, "unclaimed": s.Unclaimed, "given_back": s.GivenBack,
		"duplicates": s.Duplicates, "duplicates_over": s.DupsOver, "store_errors": s.StoreErrors, "park_errors": s.ParkErrors, "queue_errors": s.QueueErrors,
	}
	counters["blocked"], counters["unserialized"] = uint64(s.Blocked), s.Unserial
	for class, n := range s.Runs {
		counters["run_"+class] = n
	}
	for verdict, n := range s.Verdicts {
		counters["verdict_"+verdict] = n
	}
	h := admin.HandlerStatus{
		Name: spec.Name, ID: spec.ID, Effect: spec.Effect, State: admin.HandlerRuns, Running: int(s.InFlight), Counters: counters,
	}
	switch {
	case !s.Paused.IsZero():
		h.State = admin.HandlerPaused
	case !s.Held.IsZero():
		h.State = admin.HandlerHeld
	}
	return h
}

// explain says why a handler did what it did with an event.
func (a *App) explain(_ context.Context, handler string, m queue.Message, rec *dedup.Record) admin.Explanation {
	now := a.live()
	for i := range now.specs {
		spec := &now.specs[i]
		if spec.ID != handler {
			continue
		}
		snap := now.pools[i].Snapshot()
		why := consumer.Why{
			Handler: spec.Name, Effect: spec.Effect, Matches: spec.Matches(m.Event.Source, m.Event.Type),
			Seq: m.Seq, Record: rec, Progress: now.pools[i].Progress(), Now: time.Now(),
			Held: !snap.Held.IsZero(), Paused: !snap.Paused.IsZero(),
			OnDuplicate: spec.OnDuplicate, InOrder: spec.HoldOrder,
		}
		state := dedup.Free
		if rec != nil {
			state = rec.State
			why.Behind = now.pools[i].Ahead(&m.Event, rec.Key)
		}
		return admin.Explanation{State: state.String(), Text: consumer.Explain(why)}
	}
	return admin.Explanation{State: "unknown", Text: "No handler with the id " + handler + " is configured."}
}

func handlerWarnings(name string, s *consumer.Snapshot) []string {
	var w []string
	if s.ParkedFull {
		w = append(w, fmt.Sprintf("handler %s: there is no room for copies of the events of dead letters and doubts: "+
			"settle some (idemd dead list, idemd doubt list), or raise [queue] max_bytes", name))
	}
	if s.Unreaped > 0 {
		w = append(w, fmt.Sprintf("handler %s: %d runs of an earlier process are not settled yet", name, s.Unreaped))
	}
	if !s.Paused.IsZero() {
		w = append(w, fmt.Sprintf("handler %s is paused by hand since %s: its events stay queued until idemd handler resume %s",
			name, s.Paused.UTC().Format(time.RFC3339), name))
	} else if !s.Held.IsZero() {
		w = append(w, fmt.Sprintf("handler %s is held since %s, for ten events in a row failed (the last one: %s, %s): one is tried every 30 s, "+
			"the others stay queued; idemd handler resume %s gives it all of them at once",
			name, s.Held.UTC().Format(time.RFC3339), s.LastReason.Code, s.LastReason.Detail, name))
	}
	if s.StoreDown {
		w = append(w, fmt.Sprintf("handler %s takes nothing: the claim store does not answer", name))
	}
	return w
}
