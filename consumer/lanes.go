package consumer

import (
	"crypto/sha256"
	"sort"
	"sync"

	"idemd/event"
)

// lane is a value of serialize_by: of the runs in one lane, one at a time.
type lane [16]byte

// laneOf gives an event's lane under path: "*" is one lane for all events. It is
// false for an event that has no such value, which is in no lane.
func laneOf(ev *event.Event, path string) (lane, bool) {
	if path == "" {
		return lane{}, false
	}
	value := "*"
	if path != "*" {
		var ok bool
		if value, ok = event.At(ev.Body, path); !ok {
			return lane{}, false
		}
	}
	sum := sha256.Sum256([]byte(value))
	return lane(sum[:16]), true
}

// laneState is how a run stands in its lane.
type laneState uint8

const (
	arrived laneState = iota // a worker will ask for its turn
	blocked                  // it was not its turn; its record waits on stable storage
	called                   // the same, and a worker is being asked to run it
	running                  // it has its turn
	later                    // it had its turn and comes again: after a delay, or with its delivery
)

// laneRun is a run that has not left its lane.
type laneRun struct {
	key   event.Key
	seq   uint64
	state laneState

	missed bool // it was due while it ran: the store has shown it, and does not soon again
}

// turn says whose turn it is in a lane whose runs are in the order of their events:
// its place, or -1. It is nobody's while one runs. With order it is the first
// one's and nobody else's, even while that waits for its next attempt.
func turn(runs []laneRun, order bool) int {
	first := -1
	for i := range runs {
		switch {
		case runs[i].state == running:
			return -1
		case first < 0 && (order || runs[i].state != later):
			first = i
		}
	}
	return first
}

// lanes keeps the runs of a pool apart that are in one lane. It is in memory alone:
// after a restart the records that wait fill it again. A run is in it once, under
// its key, however often its event is delivered.
type lanes struct {
	order bool // hold_order

	mu    sync.Mutex
	runs  map[lane][]laneRun // in the order of their events
	total int
	seen  uint64        // up to here every event has arrived
	ready []readyRun    // those that are called
	rang  chan struct{} // holds a token while some are ready
	room  chan struct{} // holds a token after one has left
}

// maxLaneRuns bounds what is in lanes, about 30 MB; beyond it no more events are
// taken until one leaves.
const maxLaneRuns = 100_000

func newLanes(order bool) *lanes {
	return &lanes{order: order, runs: make(map[lane][]laneRun), rang: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

// arrive takes a run in. It is called in the order of events; one that is in
// already stays as it is.
func (l *lanes) arrive(at lane, key event.Key, seq uint64, state laneState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.find(at, key) < 0 {
		l.insert(at, laneRun{key: key, seq: seq, state: state})
	}
}

// passed notes that every event up to seq has arrived, whether it is in a lane or
// not. Before, nobody knows whether an earlier one is still to come.
func (l *lanes) passed(seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen = max(l.seen, seq)
}

// begin reports whether it is the turn of key's run, and if so gives it to it. A
// run that is not in the lane is taken in.
func (l *lanes) begin(at lane, key event.Key, seq uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := l.find(at, key)
	if i < 0 {
		i = l.insert(at, laneRun{key: key, seq: seq, state: blocked})
	}
	if turn(l.runs[at], l.order) != i || l.unsure(at, i) {
		switch r := &l.runs[at][i]; r.state {
		case later, called:
			r.state = blocked // it is due, and nobody asks for it again
		case running:
			r.missed = true
		}
		l.next(at)
		return false
	}
	l.runs[at][i].state = running
	return true
}

// unsure reports whether an earlier event may still come; mu is held.
func (l *lanes) unsure(at lane, i int) bool { return l.order && l.runs[at][i].seq > l.seen }

// block notes that key's run waits on stable storage. If its turn has come
// meanwhile, it is ready.
func (l *lanes) block(at lane, key event.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := l.find(at, key); i >= 0 && l.runs[at][i].state <= called {
		l.runs[at][i].state = blocked
	}
	l.next(at)
}

// end ends a turn. A run that comes again keeps its place in the order; it is
// called for its next turn if it was due meanwhile.
func (l *lanes) end(at lane, key event.Key, again bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := l.find(at, key)
	switch {
	case i < 0:
		return
	case again && l.runs[at][i].missed:
		l.runs[at][i].state, l.runs[at][i].missed = blocked, false
	case again && l.order:
		l.runs[at][i].state = later
	default:
		l.remove(at, i)
	}
	l.next(at)
}

// drop takes a run out that does not wait for a turn any more. One that runs
// leaves by end.
func (l *lanes) drop(at lane, key event.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := l.find(at, key); i >= 0 && l.runs[at][i].state != running {
		l.remove(at, i)
	}
	l.next(at)
}

// next calls the run whose turn it is, if it waits for that; mu is held.
func (l *lanes) next(at lane) {
	i := turn(l.runs[at], l.order)
	if i < 0 || l.runs[at][i].state != blocked || l.unsure(at, i) {
		return
	}
	l.runs[at][i].state = called
	l.ready = append(l.ready, readyRun{at, l.runs[at][i].key})
	select {
	case l.rang <- struct{}{}:
	default:
	}
}

// nextOfAll is next for every lane, after they were filled.
func (l *lanes) nextOfAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for at := range l.runs {
		l.next(at)
	}
}

// readyRun is a run whose turn has come.
type readyRun struct {
	at  lane
	key event.Key
}

// takeReady gives up to n runs whose turn has come.
func (l *lanes) takeReady(n int) []readyRun {
	l.mu.Lock()
	defer l.mu.Unlock()
	n = min(n, len(l.ready))
	runs := l.ready[:n:n]
	if l.ready = l.ready[n:]; len(l.ready) > 0 {
		select {
		case l.rang <- struct{}{}:
		default:
		}
	}
	return runs
}

// ahead gives the event that a run waits for; 0 when it waits for none.
func (l *lanes) ahead(at lane, key event.Key) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.runs[at] {
		switch {
		case r.key == key && l.order:
			return 0
		case r.key != key && (r.state == running || l.order):
			return r.seq
		}
	}
	return 0
}

// holding gives the runs that keep others behind them without running.
func (l *lanes) holding() []readyRun {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []readyRun
	for at, runs := range l.runs {
		if i := turn(runs, l.order); i >= 0 && runs[i].state == later && len(runs) > 1 {
			all = append(all, readyRun{at, runs[i].key})
		}
	}
	return all
}

// waiting is how many runs wait for their turn.
func (l *lanes) waiting() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, runs := range l.runs {
		for i := range runs {
			if runs[i].state == blocked || runs[i].state == called {
				n++
			}
		}
	}
	return n
}

func (l *lanes) full() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total >= maxLaneRuns
}

// find gives the place of key's run, -1 when it is not in the lane; mu is held.
func (l *lanes) find(at lane, key event.Key) int {
	for i := range l.runs[at] {
		if l.runs[at][i].key == key {
			return i
		}
	}
	return -1
}

// insert puts a run where its event belongs; mu is held.
func (l *lanes) insert(at lane, r laneRun) int {
	runs := l.runs[at]
	i := sort.Search(len(runs), func(i int) bool { return runs[i].seq > r.seq })
	runs = append(runs, laneRun{})
	copy(runs[i+1:], runs[i:])
	runs[i] = r
	l.runs[at] = runs
	l.total++
	return i
}

// remove takes a run out; mu is held.
func (l *lanes) remove(at lane, i int) {
	if l.runs[at] = append(l.runs[at][:i], l.runs[at][i+1:]...); len(l.runs[at]) == 0 {
		delete(l.runs, at)
	}
	l.total--
	select {
	case l.room <- struct{}{}:
	default:
	}
}
