package dedup_test

import (
	"encoding/json"
	"testing"
	"time"

	"idemd/dedup"
)

// FuzzJSON: fences, times and names are read as they are written, or refused.
func FuzzJSON(f *testing.F) {
	f.Add([]byte(`"18446744073709551615"`))
	f.Add([]byte(`"2026-01-02T03:04:05.000000006Z"`))
	f.Add([]byte(`"in_doubt"`))
	f.Add([]byte(`"retryable"`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, b []byte) {
		roundTrip[dedup.Fence](t, b)
		roundTrip[dedup.State](t, b)
		roundTrip[dedup.Effect](t, b)
		roundTrip[dedup.Owner](t, b)
		roundTrip[dedup.Outcome](t, b)
		var std *time.Time
		if err := json.Unmarshal(b, &std); err == nil && (std == nil || std.Year() > 1678 && std.Year() < 2262) {
			roundTrip[dedup.Time](t, b) // beyond, nanoseconds do not fit
		}
	})
}

func roundTrip[T comparable](t *testing.T, b []byte) {
	t.Helper()
	var v, back T
	if json.Unmarshal(b, &v) != nil {
		return
	}
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatalf("%T of %s cannot be written: %v", v, b, err)
	}
	if err := json.Unmarshal(out, &back); err != nil || back != v {
		t.Fatalf("%s is read as %v, written as %s, read as %v: %v", b, v, out, back, err)
	}
}
