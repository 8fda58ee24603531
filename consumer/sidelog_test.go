package consumer

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"idemd/dedup"
	"idemd/event"
)

// A run without a claim is remembered: its duplicates do not run, neither before
// nor after the store answers again, whether or not that had made the grant.
func TestPool_AllowedRunsAreRemembered(t *testing.T) {
	for name, granted := range map[string]bool{"no grant": false, "a grant that nobody heard of": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				r.store.failing(1<<30, granted, isOp[dedup.Acquire])
				h := &script{}
				s := spec("crm", h)
				s.StoreUnavailable = Allow
				p := r.start(s)
				ev := newEvent("e1")
				for range 3 {
					r.publish(ev)
					settleDown()
				}
				h.wantCalls(t, 1)
				if n := r.side.Waiting(); n != 1 {
					t.Fatalf("%d runs wait", n)
				}
				r.store.set(nil)
				if n, err := r.side.Merge(t.Context(), r.store); n != 1 || err != nil || r.side.Waiting() != 0 {
					t.Fatalf("%d merged, %v", n, err)
				}
				r.publish(ev)
				advance(2 * time.Minute)
				h.wantCalls(t, 1)
				rec := r.wantState("crm", ev, dedup.Done, dedup.ReasonUnclaimed)
				if rec.Outcome != dedup.OutcomeDone || rec.Expires == 0 {
					t.Errorf("got %+v", rec)
				}
				if s := p.Snapshot(); s.Unclaimed != 1 || s.SettledTo != 4 || s.LostGrants != 0 {
					t.Errorf("snapshot is %+v", s)
				}
			})
		})
	}
}

// What could not be written down runs again, and another payload under a known
// identity waits for the store.
func TestPool_AllowedRunsThatAreNotWrittenDown(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.store.failing(1<<30, false, isOp[dedup.Acquire])
		h := &script{}
		s := spec("crm", h)
		s.StoreUnavailable = Allow
		r.start(s)
		first, other := newEvent("e1"), newEvent("e1")
		first.Fingerprint, other.Fingerprint = event.Fingerprint{Sum: [32]byte{1}}, event.Fingerprint{Sum: [32]byte{2}}
		r.publish(first)
		settleDown()
		r.publish(other)
		settleDown()
		h.wantCalls(t, 1)
		r.store.set(nil)
		if n, err := r.side.Merge(t.Context(), r.store); n != 1 || err != nil {
			t.Fatalf("%d merged, %v", n, err)
		}
		advance(time.Minute)
		if rec, _ := r.recordOf(event.MismatchKey(other, "crm")); rec.State != dedup.Dead || rec.Reason.Code != dedup.ReasonMismatch {
			t.Errorf("the other payload is %+v", rec)
		}
		r.store.failing(1<<30, false, isOp[dedup.Acquire])
		if err := r.side.Close(); err != nil {
			t.Fatal(err)
		}
		ev := newEvent("e2")
		r.publish(ev)
		settleDown()
		h.wantCalls(t, 2)
		r.store.set(nil)
		advance(time.Minute)
		h.wantCalls(t, 3)
		r.wantState("crm", ev, dedup.Done, "")
	})
}

func entryOf(id string) sideEntry {
	ev := newEvent(id)
	return newSideEntry(&run{ev: ev, key: event.KeyFor(ev, "crm"), seq: 7}, &Spec{Effect: dedup.Retryable, Retain: time.Hour}, time.Now())
}

// A log outlives its process; what a crash leaves at its end is cut, damage is kept.
func TestSideLog_Reopen(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		path := filepath.Join(r.dir, "side.log")
		l := r.sideLog()
		for _, id := range []string{"a", "b", "c"} {
			if err := l.add(entryOf(id)); err != nil {
				t.Fatal(err)
			}
		}
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		third := len(whole) / 3
		flipped := bytes.Clone(whole)
		flipped[third+sideHead+5] ^= 1
		last := bytes.Clone(whole)
		last[len(last)-2] ^= 1
		for name, c := range map[string]struct {
			b         []byte
			waiting   int
			keptAside bool
		}{
			"whole":                  {whole, 3, false},
			"torn":                   {whole[:len(whole)-4], 2, false},
			"torn head":              {whole[:third+3], 1, false},
			"the last one is half":   {last, 2, false},
			"a bit flipped":          {flipped, 1, true},
			"a length out of bounds": {append(bytes.Clone(whole), 255, 255, 255, 255, 0, 0, 0, 0), 3, true},
			"empty":                  {nil, 0, false},
		} {
			dir := t.TempDir()
			if err := os.WriteFile(SideLogPath(dir), c.b, 0o600); err != nil {
				t.Fatal(err)
			}
			again, err := OpenSideLog(SideLogPath(dir), r.log)
			if err != nil {
				t.Fatal(err)
			}
			kept, err := filepath.Glob(SideLogPath(dir) + ".damaged-*")
			if err != nil || again.Waiting() != c.waiting || (len(kept) > 0) != c.keptAside {
				t.Errorf("%s: %d runs, kept %v, %v", name, again.Waiting(), kept, err)
			}
			if err := again.add(entryOf("d")); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if err := again.Close(); err != nil {
				t.Error(err)
			}
			b, err := os.ReadFile(SideLogPath(dir))
			if entries, good, damaged := decodeSide(b); err != nil || len(entries) != c.waiting+1 || good != len(b) || damaged {
				t.Errorf("%s: afterwards %d entries, %v", name, len(entries), err)
			}
		}
	})
}

// Whatever bit of a log's first two entries is wrong, nothing of it vanishes unsaid,
// also where the length is and so reaches beyond the end; and no torn end is damage.
func TestDecodeSide_TellsDamageFromATornEnd(t *testing.T) {
	var whole []byte
	var starts []int
	for _, id := range []string{"a", "b", "c"} {
		e := entryOf(id)
		b, err := encodeSide(&e)
		if err != nil {
			t.Fatal(err)
		}
		starts = append(starts, len(whole))
		whole = append(whole, b...)
	}
	last := starts[2]
	for bit := range 8 * last {
		b := bytes.Clone(whole)
		b[bit/8] ^= 1 << (bit % 8)
		if entries, _, damaged := decodeSide(b); !damaged {
			t.Errorf("bit %d of byte %d is wrong: %d of 3 entries, and no damage", bit%8, bit/8, len(entries))
		}
	}
	for end := range whole {
		if entries, good, damaged := decodeSide(whole[:end]); damaged || good > end || end >= last && len(entries) != 2 {
			t.Errorf("torn at %d: %d entries, damaged %t", end, len(entries), damaged)
		}
	}
	toTheEnd := bytes.Clone(whole)
	binary.LittleEndian.PutUint32(toTheEnd, uint32(len(whole)-sideHead))
	if entries, _, damaged := decodeSide(toTheEnd); !damaged {
		t.Errorf("a length that reaches exactly to the end: %d of 3 entries, and no damage", len(entries))
	}
}

func TestMergeOp(t *testing.T) {
	e := entryOf("a")
	commit := dedup.Commit{Fence: 9, Outcome: dedup.OutcomeDone, Retain: time.Hour,
		Reason: dedup.Reason{Code: dedup.ReasonUnclaimed, Detail: "it ran while the claim store did not answer"}}
	put := dedup.Put{
		State: dedup.Done, Outcome: dedup.OutcomeDone, Effect: dedup.Retryable, Origin: event.OriginCallback, Seq: 7, Attempts: 1,
		Retain: time.Hour, Reason: commit.Reason,
	}
	for _, c := range []struct {
		state dedup.State
		owner dedup.Owner
		want  dedup.Op
	}{
		{dedup.Free, dedup.InProc, put},
		{dedup.Started, dedup.InProc, commit},
		{dedup.Started, dedup.External, nil},
		{dedup.InDoubt, dedup.InProc, commit},
		{dedup.Waiting, dedup.InProc, nil},
		{dedup.Dead, dedup.InProc, nil},
		{dedup.Done, dedup.InProc, nil},
	} {
		got := mergeOp(&dedup.Record{State: c.state, Owner: c.owner, Fence: 9}, c.state != dedup.Free, &e)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%v %v: %s", c.state, c.owner, diff)
		}
	}
}
