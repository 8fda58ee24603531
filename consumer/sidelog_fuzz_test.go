package consumer

import (
	"bytes"
	"reflect"
	"testing"
	"time"
)

// FuzzSideLog: what is read from a side log ends where whole frames end, is what
// was written, and costs no more memory than there are bytes.
func FuzzSideLog(f *testing.F) {
	e := entryOf("a")
	e.At = time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	frame, err := encodeSide(&e)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(frame)
	f.Add(append(bytes.Clone(frame), frame[:20]...))
	f.Add([]byte{255, 255, 255, 255, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		entries, good, _ := decodeSide(b)
		if good > len(b) || len(entries)*sideHead > good {
			t.Fatalf("%d entries in %d of %d bytes", len(entries), good, len(b))
		}
		again, same, damaged := decodeSide(b[:good])
		if same != good || damaged || len(again) != len(entries) {
			t.Fatalf("the good part of %d bytes is not good: %d, %t", good, same, damaged)
		}
		for i := range entries {
			b, err := encodeSide(&entries[i])
			if err != nil {
				t.Fatal(err)
			}
			back, _, _ := decodeSide(b)
			if len(back) != 1 || !back[0].At.Equal(entries[i].At) || !bytes.Equal(back[0].Tuple, entries[i].Tuple) ||
				!reflect.DeepEqual(back[0].fingerprint(), entries[i].fingerprint()) {
				t.Fatalf("%+v became %+v", entries[i], back)
			}
		}
	})
}
