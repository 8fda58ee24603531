package ledger

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"idemd/dedup"
)

// FuzzEntry: an entry that is understood is the same when it is written and read
// again.
func FuzzEntry(f *testing.F) {
	words := []string{"", "crm", "wecom", "order", "callback"}
	number := func(w string) uint64 {
		for i := range words {
			if words[i] == w {
				return uint64(i)
			}
		}
		return 0
	}
	e := entryAt(time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC), "e1", time.Minute)
	e.Verdict, e.State = dedup.AlreadyDone, dedup.Done
	f.Add(appendEntry(nil, &e, number))
	f.Add([]byte{kindEntry})
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := decodeEntry(b, words)
		if err != nil {
			return
		}
		again, err := decodeEntry(appendEntry(nil, &e, number), words)
		if err != nil || again != e {
			t.Fatalf("%+v became %+v, %v", e, again, err)
		}
	})
}

// FuzzScan: whatever a file holds, reading it ends within it, and what is good in
// it is good alone.
func FuzzScan(f *testing.F) {
	f.Add([]byte{})
	f.Add(segmentHead())
	f.Add(append(segmentHead(), 1, 2, 3, 4, 255, 255, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(t.TempDir(), "2026-12-01-001.log")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		frames := 0
		res, err := scan(t.Context(), path, -1, func([]byte) error { frames++; return nil })
		if err != nil || res.end > int64(len(b)) || res.torn && res.harm != "" {
			t.Fatalf("%+v, %v of %d bytes", res, err, len(b))
		}
		again, err := scan(t.Context(), path, res.end, func([]byte) error { frames--; return nil })
		if err != nil || frames != 0 || again.end != res.end || again.harm != "" && res.harm == "" {
			t.Fatalf("%+v, then %+v, %v, %d frames", res, again, err, frames)
		}
	})
}
