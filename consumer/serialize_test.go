package consumer

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"idemd/dedup"
	"idemd/event"
)

func TestTurn(t *testing.T) {
	for _, c := range []struct {
		states        []laneState
		plain, inLine int // without and with hold_order
	}{
		{nil, -1, -1},
		{[]laneState{arrived}, 0, 0},
		{[]laneState{blocked, arrived}, 0, 0},
		{[]laneState{later}, -1, 0},
		{[]laneState{later, blocked}, 1, 0},
		{[]laneState{later, called, blocked}, 1, 0},
		{[]laneState{running, blocked}, -1, -1},
		{[]laneState{later, blocked, running}, -1, -1},
	} {
		var runs []laneRun
		for _, s := range c.states {
			runs = append(runs, laneRun{state: s})
		}
		if a, b := turn(runs, false), turn(runs, true); a != c.plain || b != c.inLine {
			t.Errorf("%v: %d and %d, want %d and %d", c.states, a, b, c.plain, c.inLine)
		}
	}
}

// Whatever happens in whatever order: one runs at most, with hold_order never one
// before an earlier one, and when nothing is left to happen nothing is left over.
func TestLanes_Property(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		order := rapid.Bool().Draw(rt, "order")
		l := newLanes(order)
		at := lane{1}
		key := func(i int) event.Key { return event.Key{Tuple: fmt.Sprint(i)} }
		const n = 6
		states := make([]string, n) // "", arrived, blocked, running, later, gone
		l.passed(n)                 // what comes out of order was given back
		missed := make([]bool, n)
		finish := func(i int, again bool) {
			l.end(at, key(i), again)
			switch {
			case !again:
				states[i] = "gone"
			case missed[i]: // nobody asks for it again: it has to be called
				states[i], missed[i] = "blocked", false
			default:
				states[i] = "later"
			}
		}
		stale := -1 // one that is gone and was shown twice: it has its turn once more, for nothing
		try := func(i int, delivered bool) {
			if l.begin(at, key(i), uint64(i+1)) {
				if stale >= 0 {
					rt.Fatalf("%d begins beside a stale one", i)
				}
				for j := range states {
					if states[j] == "running" || order && j < i && states[j] != "gone" && states[j] != "" {
						rt.Fatalf("%d begins while %d is %s", i, j, states[j])
					}
				}
				states[i] = "running"
			} else {
				states[i] = "blocked"
				if delivered { // else the record waits already
					l.block(at, key(i))
				}
			}
		}
		ready := func() {
			for _, r := range l.takeReady(n) {
				for j := range states {
					switch {
					case key(j) != r.key:
					case states[j] == "blocked":
						try(j, false)
					case states[j] == "gone":
						l.drop(at, key(j))
					}
				}
			}
		}
		step := func() {
			i := rapid.IntRange(0, n-1).Draw(rt, "run")
			switch {
			case states[i] == "":
				l.arrive(at, key(i), uint64(i+1), arrived)
				states[i] = "arrived"
			case states[i] == "gone" && stale < 0:
				if l.begin(at, key(i), uint64(i+1)) {
					stale = i
				}
			case stale >= 0 && rapid.Bool().Draw(rt, "stale"):
				l.end(at, key(stale), false)
				stale = -1
			case states[i] == "arrived", states[i] == "later":
				try(i, states[i] == "arrived")
			case states[i] == "running" && rapid.Bool().Draw(rt, "due"):
				if l.begin(at, key(i), uint64(i+1)) {
					rt.Fatalf("%d begins while it runs", i)
				}
				missed[i] = true
			case states[i] == "running":
				finish(i, rapid.Bool().Draw(rt, "again"))
			}
			ready()
		}
		for range rapid.IntRange(0, 60).Draw(rt, "steps") {
			step()
		}
		if stale >= 0 {
			l.end(at, key(stale), false)
			stale = -1
		}
		for range 20 * n { // to its end
			for i := range states {
				switch states[i] {
				case "arrived", "later":
					try(i, states[i] == "arrived")
				case "running":
					finish(i, false)
				}
			}
			ready()
		}
		for i := range states {
			if states[i] != "gone" && states[i] != "" {
				rt.Fatalf("%d is %s for ever: %v", i, states[i], states)
			}
		}
		if l.total != 0 || len(l.runs) != 0 {
			rt.Fatalf("%d runs are left", l.total)
		}
	})
}

// valued is an event with a customer.
func valued(id, customer string) *event.Event {
	ev := newEvent(id)
	ev.Body = fmt.Appendf(nil, `{"id":%q,"customer":%q}`, id, customer)
	return ev
}

// watcher counts what runs at one time for each customer, and notes the order.
type watcher struct {
	script
	busy    map[string]int
	most    map[string]int // at one time, by customer; "*" for all
	ended   map[string][]string
	failing map[string]int // event id -> attempts that fail
	all     sync.Mutex
}

func newWatcher() *watcher {
	return &watcher{busy: map[string]int{}, most: map[string]int{}, ended: map[string][]string{}, failing: map[string]int{}}
}

func (w *watcher) Handle(ctx context.Context, a *Attempt) Answer {
	customer, _ := event.At(a.Event.Body, "customer")
	id := a.Event.Identity.ID
	count := func(by int) {
		w.all.Lock()
		defer w.all.Unlock()
		for _, c := range []string{customer, "*"} {
			w.busy[c] += by
			w.most[c] = max(w.most[c], w.busy[c])
		}
	}
	w.script.Handle(ctx, a)
	count(1)
	advance(7 * time.Millisecond)
	count(-1)
	w.all.Lock()
	defer w.all.Unlock()
	if w.failing[id]--; w.failing[id] >= 0 {
		return status(401)
	}
	w.ended[customer] = append(w.ended[customer], id)
	return Answer{Class: Done}
}

func serial(h Handler, order bool) Spec {
	s := spec("crm", h)
	s.Effect, s.SerializeBy, s.HoldOrder = dedup.Irrevocable, "customer", order
	s.Retry = []time.Duration{time.Second, time.Second, time.Second}
	return s
}

// Of one value one runs at a time, of several many; all are run once, also when
// they fail in between, are sent twice, and when the pool is another one halfway.
func TestPool_SerializeBy(t *testing.T) {
	for name, order := range map[string]bool{"one at a time": false, "and in order": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				w := newWatcher()
				const customers, each = 5, 12
				for c := range customers {
					w.failing[fmt.Sprintf("e%d-3", c)] = 2
				}
				ctx, cut := context.WithCancel(t.Context())
				defer cut()
				first, err := NewPool(ctx, Config{Spec: serial(w, order), Queue: r.queue, Store: r.store, Logger: r.log})
				if err != nil {
					t.Fatal(err)
				}
				ended := make(chan error, 1)
				go func() { ended <- first.Run(ctx) }()
				for i := range each {
					for c := range customers {
						ev := valued(fmt.Sprintf("e%d-%d", c, i), fmt.Sprint("c", c))
						r.publish(ev)
						if i%4 == 1 {
							r.publish(ev)
						}
					}
				}
				advance(20 * time.Millisecond)
				if n := first.Snapshot().Blocked; n == 0 {
					t.Error("nothing is blocked")
				}
				if err := first.Stop(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := <-ended; err != nil {
					t.Fatal(err)
				}
				r.restart()
				if len(w.seen()) >= customers*each {
					t.Fatal("all has run before the second pool")
				}
				p := r.start(serial(w, order))
				advance(3 * time.Minute)
				if n := len(w.seen()); n != customers*(each+2) {
					t.Errorf("%d attempts, want %d", n, customers*(each+2))
				}
				w.all.Lock()
				defer w.all.Unlock()
				for c := range customers {
					name := fmt.Sprint("c", c)
					if w.most[name] != 1 || len(w.ended[name]) != each {
						t.Errorf("%s: %d at one time, %d done", name, w.most[name], len(w.ended[name]))
					}
					inOrder := slices.IsSortedFunc(w.ended[name], func(a, b string) int {
						return len(a) - len(b) + strings.Compare(a, b)*boolInt(len(a) == len(b))
					})
					if order && !inOrder {
						t.Errorf("%s: %v", name, w.ended[name])
					}
				}
				if w.most["*"] < 2 {
					t.Errorf("%d at one time of all", w.most["*"])
				}
				if s := p.Snapshot(); s.Blocked != 0 || len(p.lanes.runs) != 0 {
					t.Errorf("%d blocked, %d lanes left", s.Blocked, len(p.lanes.runs))
				}
			})
		})
	}
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// A run that somebody else settles lets go of those behind it.
func TestPool_HoldOrderLetsGoOfWhatIsRetired(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		w := newWatcher()
		s := serial(w, true)
		s.Retry = []time.Duration{24 * time.Hour}
		r.start(s)
		first, second := valued("first", "c"), valued("second", "c")
		first.Source = "old"
		w.failing["first"] = 1
		r.publish(first)
		settleDown()
		r.publish(second)
		settleDown()
		r.wantState("crm", second, dedup.Waiting, dedup.ReasonBlocked)
		if n, err := Retire(t.Context(), Recovery{Store: r.store, Queue: r.queue, Logger: r.log}, []string{"old"}); n != 1 || err != nil {
			t.Fatalf("%d retired, %v", n, err)
		}
		advance(2 * dedup.RearmAfter)
		r.wantState("crm", second, dedup.Done, "")
	})
}

// Events without the value wait for nobody; "*" is one at a time at all; a dead
// letter and a doubt let go of what is behind them.
func TestPool_SerializeByEdges(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		w, all := newWatcher(), newWatcher()
		one := serial(all, true)
		one.ID, one.SerializeBy = "all", "*"
		line := serial(w, true)
		line.ReplayLimit = 2 * time.Minute
		r.start(line)
		r.start(one)
		for i := range 6 {
			r.publish(newEvent(fmt.Sprint("n", i)))
		}
		advance(time.Second)
		w.all.Lock()
		all.all.Lock()
		if w.most["*"] != 6 || all.most["*"] != 1 || len(all.ended[""]) != 6 {
			t.Errorf("%d and %d at one time, %d done", w.most["*"], all.most["*"], len(all.ended[""]))
		}
		all.all.Unlock()
		w.failing["bad"] = 1 << 20 // 401: no effect, again and again
		w.all.Unlock()
		bad, good := valued("bad", "c"), valued("good", "c")
		r.publish(bad)
		advance(10 * time.Millisecond)
		r.publish(good)
		advance(time.Minute)
		r.wantState("crm", good, dedup.Waiting, dedup.ReasonBlocked)
		advance(2 * time.Minute)
		if rec, _ := r.record("crm", bad); rec.State != dedup.Dead {
			t.Errorf("bad is %v", rec.State)
		}
		r.wantState("crm", good, dedup.Done, "")
	})
}

// What can wait does not add to what only waits for its turn.
func TestPool_NoRoomWhileRunsAreBlocked(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := &script{hold: make(chan struct{})}
		s := serial(h, false)
		s.Concurrency = 2
		p := r.start(s)
		if !p.Room(t.Context()) {
			t.Error("no room in an idle pool")
		}
		for i := range 3 {
			r.publish(valued(fmt.Sprint("e", i), "c"))
		}
		settleDown()
		if s := p.Snapshot(); s.InFlight != 1 || s.Blocked != 2 || p.Room(t.Context()) {
			t.Errorf("%d in flight, %d blocked, room %t", s.InFlight, s.Blocked, p.Room(t.Context()))
		}
		close(h.hold)
		settleDown()
		if !p.Room(t.Context()) {
			t.Error("no room afterwards")
		}
	})
}
