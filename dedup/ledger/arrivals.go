package ledger

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// The bounds of what is told apart.
const (
	maxSources   = 256
	maxTypes     = 64    // of one source
	maxRemember  = 65536 // events whose span may still be replaced, in each of two generations
	forAllOfType = ""
)

// series is what has a histogram of its own: a source, or one type of it.
type series struct{ source, typ string }

// arrivals knows for each event that came more than once the span between its
// first and its last arrival. Spans are counted on the day of the last arrival,
// so that they go with that day. Several handlers of one event count once: the
// longest span holds.
type arrivals struct {
	days  map[int32]map[series]*Histogram
	types map[string]map[string]bool // source -> types that are told apart

	known, older map[uint64]arrival // by Entry.Event
}

// arrival is an event's span, and where it was counted.
type arrival struct {
	span        time.Duration
	source, typ *Histogram
}

func newArrivals() *arrivals {
	return &arrivals{days: map[int32]map[series]*Histogram{}, types: map[string]map[string]bool{}, known: map[uint64]arrival{}}
}

// observe takes in an entry. A later arrival of an event that is still known
// replaces the earlier one; of one that is not it counts as another event.
func (a *arrivals) observe(e *Entry) {
	if !e.Arrival {
		return
	}
	span := e.Delay()
	before, found := a.known[e.Event]
	if !found {
		before, found = a.older[e.Event]
	}
	if found {
		if span <= before.span {
			return
		}
		before.source.remove(before.span)
		before.typ.remove(before.span)
	}
	day := dayOf(e.At.Std())
	source, typ := a.names(e.Source, e.Type)
	now := arrival{span, a.histogram(day, series{source, forAllOfType}), a.histogram(day, series{source, typ})}
	now.source.add(span)
	now.typ.add(span)
	if len(a.known) >= maxRemember {
		a.older, a.known = a.known, map[uint64]arrival{}
	}
	a.known[e.Event] = now
}

// names gives what the entry is counted under.
func (a *arrivals) names(source, typ string) (string, string) {
	if a.types[source] == nil {
		if len(a.types) >= maxSources {
			source = wordOther
		}
		if a.types[source] == nil {
			a.types[source] = map[string]bool{}
		}
	}
	types := a.types[source]
	if typ == forAllOfType || !types[typ] && len(types) >= maxTypes {
		typ = wordOther
	}
	types[typ] = true
	return source, typ
}

func (a *arrivals) histogram(day int32, s series) *Histogram {
	if a.days[day] == nil {
		a.days[day] = map[series]*Histogram{}
	}
	h := a.days[day][s]
	if h == nil {
		h = &Histogram{}
		a.days[day][s] = h
	}
	return h
}

// forget drops the days before day.
func (a *arrivals) forget(day int32) {
	maps.DeleteFunc(a.days, func(d int32, _ map[series]*Histogram) bool { return d < day })
}

// Arrivals is the distribution of one source, or of one type of it: for each
// event that came more than once, the time from its first to its last arrival.
type Arrivals struct {
	Source string // id
	Type   string // empty: all types
	Distribution
}

// all gives every series, a source before its types.
func (a *arrivals) all() []Arrivals {
	sum := map[series]*Histogram{}
	for _, day := range a.days {
		for s, h := range day {
			if sum[s] == nil {
				sum[s] = &Histogram{}
			}
			sum[s].merge(h)
		}
	}
	var list []Arrivals
	for s, h := range sum {
		if d := h.Distribution(); d.Count > 0 {
			list = append(list, Arrivals{Source: s.source, Type: s.typ, Distribution: d})
		}
	}
	slices.SortFunc(list, func(x, y Arrivals) int {
		return cmp.Or(cmp.Compare(x.Source, y.Source), cmp.Compare(x.Type, y.Type))
	})
	return list
}
