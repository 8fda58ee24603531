package app

import (
	"fmt"
	"maps"
	"reflect"
	"slices"

	"idemd/admin"
	"idemd/dedup"
)

// needRestart lists what differs and cannot change while the process runs.
func needRestart(old, next *Config) []Problem {
	var all []Problem
	for _, d := range []struct {
		path      string
		was, will any
	}{
		{"data_dir", old.DataDir, next.DataDir},
		{"receiver.listen", old.Receiver.Listen, next.Receiver.Listen},
		{"receiver.in_flight", old.Receiver.InFlight, next.Receiver.InFlight},
		{"receiver.readers", old.Receiver.Readers, next.Receiver.Readers},
		{"receiver.body_memory", old.Receiver.BodyMemory, next.Receiver.BodyMemory},
		{"queue", old.Queue, next.Queue},
	} {
		if !reflect.DeepEqual(d.was, d.will) {
			all = append(all, Problem{
				Path: d.path, Line: next.line(d.path), What: "differs from what idemd was started with, and cannot change while it runs",
				Hint: "restart idemd for it, or put back what it was",
			})
		}
	}
	return all
}

// openRuns counts what somebody still has to do for an id.
type openRuns struct {
	open   int    // records that are not settled, without dead letters
	queued uint64 // events that the handler has not had yet
}

// vanished lists the ids of a setup that the next configuration no longer has
// though something is left to do for them: under another id everything would
// be new, and would run again.
func vanished(old *setup, next *Config, handlers, sources map[string]openRuns) []Problem {
	var all []Problem
	missing := func(table, name, id string, left openRuns) {
		if slices.Contains(next.Retire, id) || left == (openRuns{}) {
			return
		}
		what := fmt.Sprintf("the id %s is gone, and %d of its runs are not settled", id, left.open)
		if left.queued > 0 {
			what += fmt.Sprintf(", %d events are queued", left.queued)
		}
		all = append(all, Problem{
			Path: fmt.Sprintf("%s %q", table, name), What: what,
			Hint: fmt.Sprintf("write id = %q at the %s that was renamed; or give up what is left with retire = [%q]", id, table, id),
		})
	}
	for i := range old.specs {
		s := &old.specs[i]
		if !next.hasHandler(s.ID) {
			missing("handler", s.Name, s.ID, handlers[s.ID])
		}
	}
	for _, s := range old.cfg.Sources {
		if !next.hasSource(s.ID) {
			missing("source", s.Name, s.ID, sources[s.ID])
		}
	}
	return all
}

func (c *Config) hasHandler(id string) bool {
	return slices.ContainsFunc(c.Handlers, func(h HandlerConfig) bool { return h.ID == id })
}

func (c *Config) hasSource(id string) bool {
	return slices.ContainsFunc(c.Sources, func(s SourceConfig) bool { return s.ID == id })
}

// unsettled counts the states of a handler's records that somebody has to act on.
func unsettled(states map[string]int) (n int) {
	for state, count := range states {
		if state != dedup.Dead.String() {
			n += count
		}
	}
	return n
}

// changes says what another setup changes. secrets tells of each source whether
// its secrets are others.
func changes(old, next *setup, secrets map[string]bool) []admin.Change {
	all := []admin.Change{}
	add := func(kind, name string, what admin.ChangeKind) {
		all = append(all, admin.Change{Kind: kind, Name: name, What: what})
	}
	was := map[string]SourceConfig{}
	for _, s := range old.cfg.Sources {
		was[s.ID] = s
	}
	for _, s := range next.cfg.Sources {
		before, known := was[s.ID]
		delete(was, s.ID)
		switch {
		case !known:
			add("source", s.Name, admin.Added)
		case !reflect.DeepEqual(before, s) || secrets[s.ID]:
			add("source", s.Name, admin.Changed)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(was)) {
		add("source", was[id].Name, admin.Removed)
	}
	for i := range next.specs {
		switch at := old.handler(next.specs[i].ID); {
		case at < 0:
			add("handler", next.specs[i].Name, admin.Added)
		case old.digests[at] != next.digests[i]:
			add("handler", next.specs[i].Name, admin.Changed)
		}
	}
	for i := range old.specs {
		if next.handler(old.specs[i].ID) < 0 {
			add("handler", old.specs[i].Name, admin.Removed)
		}
	}
	if old.cfg.Windows != next.cfg.Windows {
		add("windows", "", admin.Changed)
	}
	return all
}
