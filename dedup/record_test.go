package dedup_test

import (
	"encoding"
	"encoding/json"
	"math"
	"testing"
	"time"

	"idemd/dedup"
)

type name interface {
	encoding.TextMarshaler
	String() string
}

func TestNames_RoundTrip(t *testing.T) {
	for _, tc := range []struct {
		v    name
		back encoding.TextUnmarshaler
		want string
	}{
		{dedup.Free, new(dedup.State), "free"},
		{dedup.Started, new(dedup.State), "started"},
		{dedup.Waiting, new(dedup.State), "waiting"},
		{dedup.InDoubt, new(dedup.State), "in_doubt"},
		{dedup.Dead, new(dedup.State), "dead"},
		{dedup.Done, new(dedup.State), "done"},
		{dedup.Idempotent, new(dedup.Effect), "idempotent"},
		{dedup.Retryable, new(dedup.Effect), "retryable"},
		{dedup.Irrevocable, new(dedup.Effect), "irrevocable"},
		{dedup.InProc, new(dedup.Owner), "inproc"},
		{dedup.External, new(dedup.Owner), "external"},
		{dedup.OutcomeDone, new(dedup.Outcome), "done"},
		{dedup.OutcomeDropped, new(dedup.Outcome), "dropped"},
	} {
		b, err := tc.v.MarshalText()
		if err != nil || string(b) != tc.want {
			t.Errorf("%T: %q, %v; want %q", tc.v, b, err, tc.want)
		}
		if err := tc.back.UnmarshalText(b); err != nil {
			t.Errorf("%T: %v", tc.v, err)
		}
		back, ok := tc.back.(name)
		if !ok || back.String() != tc.want {
			t.Errorf("%T: %q comes back as %v", tc.v, tc.want, tc.back)
		}
		if err := tc.back.UnmarshalText([]byte("DONE")); err == nil {
			t.Errorf("%T takes an unknown name", tc.v)
		}
	}
	if got := dedup.State(77).String(); got != "unknown(77)" {
		t.Errorf("an unknown state is %q", got)
	}
}

func TestFence_IsAStringInJSON(t *testing.T) {
	f := dedup.NewFence(math.MaxUint16, 1<<40-1)
	b, err := json.Marshal(f)
	if err != nil || string(b) != `"72057594037927935"` {
		t.Errorf("%s, %v", b, err)
	}
	var back dedup.Fence
	if err := json.Unmarshal(b, &back); err != nil || back != f {
		t.Errorf("%d, %v", back, err)
	}
	for _, bad := range []string{`72057594037927935`, `""`, `"-1"`, `"x"`, `null1`} {
		if err := json.Unmarshal([]byte(bad), &back); err == nil {
			t.Errorf("%s is taken for a fence", bad)
		}
	}
}

func TestFence_LaterEpochsAreGreater(t *testing.T) {
	if a, b := dedup.NewFence(1, 1<<40-1), dedup.NewFence(2, 1); a >= b || b.Epoch() != 2 {
		t.Errorf("%d, %d", a, b)
	}
}

func TestTime_NeverIsNull(t *testing.T) {
	for in, want := range map[dedup.Time]string{
		0: "null",
		dedup.At(time.Date(2026, 11, 30, 23, 59, 59, 5, time.FixedZone("", 3600))): `"2026-11-30T22:59:59.000000005Z"`,
	} {
		b, err := json.Marshal(in)
		if err != nil || string(b) != want {
			t.Errorf("%s, %v; want %s", b, err, want)
		}
		back := dedup.Time(1)
		if err := json.Unmarshal(b, &back); err != nil || back != in {
			t.Errorf("%d, %v; want %d", back, err, in)
		}
	}
	if dedup.At(time.Time{}) != 0 || !dedup.Time(0).Std().IsZero() {
		t.Error("the zero time is not never")
	}
}

func TestRecord_WakeAt(t *testing.T) {
	for name, tc := range map[string]struct {
		r    *dedup.Record
		want dedup.Time
	}{
		"waiting":          {record(dedup.Waiting), now + hour},
		"waiting for ever": {record(dedup.Waiting, func(r *dedup.Record) { r.Due = 0 }), 1},
		"external":         {record(dedup.Started, external(now)), now},
		"inproc":           {record(dedup.Started), 0},
		"in doubt":         {record(dedup.InDoubt), 0},
		"dead":             {record(dedup.Dead), 0},
		"done":             {record(dedup.Done), 0},
	} {
		if got := tc.r.WakeAt(); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}

func TestState_OpenMeansSomebodyIsNeeded(t *testing.T) {
	for s := dedup.Free; s <= dedup.Done; s++ {
		if want := s != dedup.Free && s != dedup.Done; s.Open() != want {
			t.Errorf("%v: %t", s, s.Open())
		}
	}
}

func TestProgress_IsNeverBeyondTheStream(t *testing.T) {
	was := dedup.Progress{FirstSeq: 7, SettledTo: 12}
	for first, want := range map[uint64]dedup.Progress{
		13: was, 100: was, math.MaxUint64: was,
		12: {FirstSeq: 7, SettledTo: 11}, 7: {FirstSeq: 7, SettledTo: 6}, 6: {FirstSeq: 6, SettledTo: 5},
		1: {FirstSeq: 1}, 0: {},
	} {
		if got := was.Within(first); got != want {
			t.Errorf("next event %d: %+v, want %+v", first, got, want)
		}
	}
}
