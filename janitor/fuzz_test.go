package janitor

import (
	"testing"
	"time"
)

// FuzzReport: a line that is understood is the same when it is written and read
// again; one with a byte changed is not understood.
func FuzzReport(f *testing.F) {
	line, err := encodeReport(Report{Task: "seal", Began: time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC), Steps: 3, Error: "x"})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(line[:len(line)-1], uint(20))
	f.Add([]byte("00000000 {}"), uint(0))
	f.Fuzz(func(t *testing.T, line []byte, at uint) {
		r, ok := decodeReport(line)
		if !ok {
			return
		}
		again, err := encodeReport(r)
		if err != nil {
			t.Fatal(err)
		}
		back, ok := decodeReport(again[:len(again)-1])
		if !ok || !back.Began.Equal(r.Began) || back.Task != r.Task || back.Error != r.Error || back.Bytes != r.Bytes {
			t.Fatalf("%+v became %+v, %t", r, back, ok)
		}
		i := int(at % uint(len(again)-1))
		again[i] ^= 1
		if _, ok := decodeReport(again[:len(again)-1]); ok {
			t.Fatalf("byte %d of %q does not matter", i, again)
		}
	})
}
