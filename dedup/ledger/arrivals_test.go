package ledger

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func within(t *testing.T, what string, got, want time.Duration) {
	t.Helper()
	if math.Abs(float64(got-want)) > 0.05*float64(want) {
		t.Errorf("%s is %v, want %v within 5 %%", what, got, want)
	}
}

func TestHistogram_PercentilesAreWithinFivePercent(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, shape := range []func() float64{
		random.ExpFloat64, random.Float64,
		func() float64 { return math.Exp(3 * random.NormFloat64()) },
	} {
		var h Histogram
		var all []time.Duration
		for range 20_000 {
			d := time.Duration(shape() * float64(time.Hour))
			all = append(all, max(d, 2*time.Millisecond))
			h.add(all[len(all)-1])
		}
		slices.Sort(all)
		d := h.Distribution()
		within(t, "P50", d.P50, all[len(all)/2-1])
		within(t, "P95", d.P95, all[len(all)*95/100-1])
		within(t, "P99", d.P99, all[len(all)*99/100-1])
		if d.Max != all[len(all)-1] || d.Count != uint64(len(all)) {
			t.Errorf("got %+v", d)
		}
	}
}

func TestHistogram_Edges(t *testing.T) {
	var h Histogram
	if d := h.Distribution(); d.Count != 0 || d.P99 != 0 || d.Max != 0 {
		t.Errorf("an empty one has %+v", d)
	}
	h.add(0)
	h.add(100 * 365 * day)
	if d := h.Distribution(); d.P50 != time.Millisecond && d.P50 > 2*time.Millisecond || d.Max != 100*365*day || len(d.Buckets) != 2 {
		t.Errorf("got %+v", d)
	}
	h.remove(0)
	h.remove(100 * 365 * day)
	if d := h.Distribution(); d.Count != 0 || len(d.Buckets) != 0 {
		t.Errorf("an emptied one has %+v", d)
	}
}

func TestArrivals_AnEventCountsOnceWithItsLastArrival(t *testing.T) {
	a := newArrivals()
	first := time.Unix(1_800_000_000, 0)
	observe := func(e Entry) { a.observe(&e) }
	for _, handler := range []string{"crm", "erp", "mail"} { // one delivery, three handlers
		observe(entryOf(first, "shop", "order.paid", handler, "a", 10*time.Second))
	}
	observe(entryOf(first, "shop", "order.paid", "crm", "a", time.Hour)) // replaces
	observe(entryOf(first, "shop", "order.paid", "erp", "a", time.Minute))
	observe(entryOf(first, "shop", "order.sent", "crm", "b", 2*day)) // on another day
	observe(entryOf(first, "wecom", "x", "crm", "a", 5*time.Second)) // another source's
	for _, not := range []func(*Entry){
		func(e *Entry) { e.Arrival = false },
	} {
		e := entryOf(first, "shop", "order.paid", "crm", "never", day)
		not(&e)
		a.observe(&e)
	}
	type line struct {
		source, typ string
		count       uint64
		max         time.Duration
	}
	var got []line
	for _, s := range a.all() {
		got = append(got, line{s.Source, s.Type, s.Count, s.Max})
	}
	want := []line{
		{"shop", "", 2, 2 * day}, {"shop", "order.paid", 1, time.Hour}, {"shop", "order.sent", 1, 2 * day},
		{"wecom", "", 1, 5 * time.Second}, {"wecom", "x", 1, 5 * time.Second},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(line{})); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestArrivals_AreTheSameAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		l := open(t, Config{Dir: dir})
		random := rand.New(rand.NewPCG(3, 4))
		for i := range 5000 {
			id := random.IntN(2000)
			if i%10 == 0 {
				id = 1 // a storm
			}
			e := entryOf(time.Now(), "shop", fmt.Sprint("type", id%100), "crm", fmt.Sprint("id", id), time.Duration(random.Int64N(int64(day))))
			e.At = entryAt(time.Now(), "", 0).At
			l.Note(e)
			if i%500 == 0 {
				time.Sleep(5 * time.Hour)
			}
		}
		want := l.Arrivals()
		if want[0].Count < 1000 || want[0].Count > 2000 || len(want) != maxTypes+2 {
			t.Errorf("%d series, %d events", len(want), want[0].Count)
		}
		closeLedger(t, l)
		if diff := cmp.Diff(want, open(t, Config{Dir: dir}).Arrivals()); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
	})
}

func TestAdvise(t *testing.T) {
	many := func(p99, most time.Duration) Distribution { return Distribution{Count: 1000, P99: p99, Max: most} }
	for name, c := range map[string]struct {
		in   Windows
		want Advice
	}{
		"nothing is known": {
			Windows{Hot: 2 * time.Hour, Cold: 30 * day, Needed: 15 * day},
			Advice{Cold: 15 * day, Verdict: TooFew},
		},
		"long enough by P99": {
			Windows{Hot: 2 * time.Hour, Cold: 30 * day, Needed: 15 * day, Arrivals: many(time.Hour, 3*time.Hour)},
			Advice{HotFrom: 2 * time.Hour, Hot: 3 * time.Hour, Cold: 15 * day, Verdict: OK},
		},
		"hot is shorter than twice P99": {
			Windows{Hot: 2*time.Hour - 1, Cold: 30 * day, Arrivals: many(time.Hour, 3*time.Hour)},
			Advice{HotFrom: 2 * time.Hour, Hot: 3 * time.Hour, Cold: 3 * time.Hour, Verdict: TooShort, HotShort: true},
		},
		"never below what the platform says": {
			Windows{Hot: 3 * day, Cold: 30 * day, Span: 3 * day, Arrivals: many(time.Minute, time.Hour)},
			Advice{HotFrom: 3 * day, Hot: 3 * day, Cold: time.Hour, Verdict: OK},
		},
		"too few to say": {
			Windows{Hot: time.Hour, Cold: 30 * day, Arrivals: Distribution{Count: 99, P99: day, Max: day}},
			Advice{Cold: day, Verdict: TooFew},
		},
		"one that came after cold is enough": {
			Windows{Hot: time.Hour, Cold: 30 * day, Arrivals: Distribution{Count: 1, P99: 31 * day, Max: 31 * day}},
			Advice{Cold: 31 * day, Verdict: TooShort, ColdShort: true},
		},
		"cold by the sum": {
			Windows{Hot: time.Hour, Cold: 14 * day, Needed: 15 * day},
			Advice{Cold: 15 * day, Verdict: TooShort, ColdShort: true},
		},
	} {
		if diff := cmp.Diff(c.want, Advise(c.in)); diff != "" {
			t.Errorf("%s: -want +got\n%s", name, diff)
		}
	}
}
