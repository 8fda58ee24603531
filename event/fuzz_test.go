package event_test

import (
	"errors"
	"testing"

	"idemd/event"
)

// FuzzKey: what is taken for a key's tuple is one: its parts make it again, and
// everything else is refused.
func FuzzKey(f *testing.F) {
	for _, batch := range []string{"", "b"} {
		ev := &event.Event{Source: "s", Batch: batch, Identity: event.Identity{Tenant: "t", Kind: "platform", ID: "1"}}
		f.Add(event.KeyFor(ev, "h").Tuple)
	}
	f.Add("")
	f.Add("\x01a")
	f.Fuzz(func(t *testing.T, tuple string) {
		key, err := event.ParseKey(tuple)
		parts, perr := event.DecodeKey(tuple)
		if (err == nil) != (perr == nil) {
			t.Fatalf("parsed %v, decoded %v", err, perr)
		}
		if err != nil {
			if !errors.Is(err, event.ErrTuple) {
				t.Fatalf("error %v", err)
			}
			return
		}
		if key.Tuple != tuple || len(key.RunID()) != 30 || len(parts.EventID()) != 30 {
			t.Fatalf("key %q of %q", key.Tuple, tuple)
		}
		if parts.Mismatch {
			return // the fingerprint is in the tuple alone
		}
		ev := &event.Event{Source: parts.Source, Batch: parts.Batch, Identity: parts.Identity}
		if again := event.KeyFor(ev, parts.Handler); again != key {
			t.Fatalf("%q became %q", tuple, again.Tuple)
		}
	})
}
