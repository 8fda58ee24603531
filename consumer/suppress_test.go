package consumer

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"idemd/dedup"
	"idemd/event"
)

// R51: each delivery that is not run is told once, with the record that decided.
func TestPool_TellsEachSuppression(t *testing.T) {
	first := withBody(newEvent("e1"), `{"a":1}`)
	other := withBody(first, `{"a":2}`)
	unparsed := newEvent("e2")
	unparsed.Type = event.TypeUnparsed
	long := withBody(newEvent(strings.Repeat("x", event.MaxID+1)), `{"a":1}`)
	longer := withBody(long, `{"a":2}`)
	original, mismatch := event.KeyFor(first, "crm").RunID(), event.MismatchKey(other, "crm").RunID()
	for name, c := range map[string]struct {
		effect dedup.Effect
		answer Answer
		events []*event.Event
		want   []string
	}{
		"done": {dedup.Retryable, status(200), []*event.Event{first, first, first},
			[]string{"2 done " + original, "3 done " + original}},
		"waiting":  {dedup.Retryable, status(500), []*event.Event{first, first}, []string{"2 waiting " + original}},
		"dead":     {dedup.Retryable, status(400), []*event.Event{first, first}, []string{"2 dead " + original}},
		"in doubt": {dedup.Irrevocable, status(500), []*event.Event{first, first}, []string{"2 in_doubt " + original}},
		"another payload meets the first, its repeats meet it": {dedup.Retryable, status(200), []*event.Event{first, other, other},
			[]string{"2 mismatch " + original, "3 dead " + mismatch}},
		"parked unseen": {dedup.Retryable, status(200), []*event.Event{unparsed, unparsed},
			[]string{"2 dead " + event.KeyFor(unparsed, "crm").RunID()}},
		"parked unseen, with another payload": {dedup.Retryable, status(200), []*event.Event{long, longer, longer},
			[]string{"2 mismatch " + event.KeyFor(long, "crm").RunID(), "3 dead " + event.MismatchKey(longer, "crm").RunID()}},
		"idempotent runs have no record": {dedup.Idempotent, status(200), []*event.Event{first, first}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				var mu sync.Mutex
				var got []string
				s := spec("crm", &script{answers: []Answer{c.answer}})
				s.Effect, s.Retry = c.effect, []time.Duration{24 * time.Hour}
				r.startWith(Config{Spec: s, Suppressed: func(s Suppression) {
					mu.Lock()
					defer mu.Unlock()
					got = append(got, fmt.Sprint(s.Seq, " ", s.Verdict, " ", s.Key.RunID()))
					if s.Handler != "crm" || s.Event == nil || s.Record.FirstSeen == 0 || s.Record.Key != s.Key || s.At.IsZero() {
						t.Errorf("got %+v", s)
					}
				}})
				for _, ev := range c.events {
					ev := *ev
					ev.Received = time.Now()
					r.publish(&ev)
					settleDown()
				}
				mu.Lock()
				defer mu.Unlock()
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Errorf("-want +got\n%s", diff)
				}
			})
		})
	}
}

func TestRunTimes_PercentilesAreAtMostAnEighthTooLong(t *testing.T) {
	var times runTimes
	for us := range uint64(100_000) {
		if b := runBucket(us); us >= runBucketEnd(b) || b > 0 && us < runBucketEnd(b-1) {
			t.Fatalf("%d us is in bucket %d, which ends before %d", us, b, runBucketEnd(b))
		}
	}
	for ms := range 1000 {
		times.add(time.Duration(ms+1) * time.Millisecond)
	}
	got := times.snapshot()
	for _, p := range []struct{ got, want time.Duration }{
		{got.P50, 500 * time.Millisecond}, {got.P95, 950 * time.Millisecond}, {got.P99, 990 * time.Millisecond},
	} {
		if p.got < p.want || p.got > p.want*9/8 {
			t.Errorf("%v, want %v", p.got, p.want)
		}
	}
	if got.Count != 1000 || runBucket(1<<63) >= len(times.counts) {
		t.Errorf("got %+v, %d", got, runBucket(1<<63))
	}
	if (&runTimes{}).snapshot() != (RunTimes{}) {
		t.Error("without attempts there are times")
	}
}

func TestRunTimes_NearTimeout(t *testing.T) {
	for _, c := range []struct {
		times RunTimes
		want  bool
	}{
		{RunTimes{Count: 20, P95: 8*time.Second + 1}, true},
		{RunTimes{Count: 20, P95: 8 * time.Second}, false},
		{RunTimes{Count: 19, P95: 10 * time.Second}, false},
	} {
		if got := c.times.NearTimeout(10 * time.Second); got != c.want {
			t.Errorf("%+v: %v", c.times, got)
		}
	}
}

func TestPool_MeasuresHowLongAttemptsTake(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		s := spec("crm", &script{do: func(ctx context.Context, _ *Attempt) {
			if sleep(ctx, 9*time.Second) != nil {
				t.Error("cut")
			}
		}})
		s.Timeout = 10 * time.Second
		p := r.start(s)
		for i := range minRunTimes {
			r.publish(newEvent(fmt.Sprint("id", i)))
		}
		advance(time.Minute)
		if got := p.Snapshot().Times; got.Count != minRunTimes || !got.NearTimeout(s.Timeout) || got.P50 < 9*time.Second {
			t.Errorf("got %+v", got)
		}
	})
}
