package event_test

import (
	"errors"
	"slices"
	"testing"

	"idemd/event"
)

// Case 84: parts "a:b","c" and "a","b:c" are different keys.
func TestTuple_DifferentListsGiveDifferentBytes(t *testing.T) {
	lists := [][]string{
		{}, {""}, {"", ""}, {"a"}, {"a", ""}, {"", "a"}, {"a:b", "c"}, {"a", "b:c"}, {"ab", "c"}, {"a", "bc"}, {"abc"},
		{"\x00"}, {"\x00", "\x00"}, {"\x01a"}, {"a\nb", "\xff\xfe"},
	}
	seen := map[string][]string{}
	for _, list := range lists {
		enc := string(event.AppendTuple(nil, list...))
		if other, ok := seen[enc]; ok {
			t.Errorf("%q and %q have one encoding", list, other)
		}
		seen[enc] = list
		got, err := event.DecodeTuple([]byte(enc))
		if err != nil || !slices.Equal(got, list) {
			t.Errorf("decode(encode(%q)) = %q, %v", list, got, err)
		}
	}
}

func TestTuple_RefusesWhatItDoesNotWrite(t *testing.T) {
	for name, b := range map[string]string{
		"length over the end": "\x05ab", "length without end": "\x80", "longer form of a length": "\x81\x00a",
		"overflowing length": "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
	} {
		if got, err := event.DecodeTuple([]byte(b)); !errors.Is(err, event.ErrTuple) {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
}

func FuzzTuple(f *testing.F) {
	f.Add([]byte("\x01a\x00\x03b:c"), "x", "y")
	f.Add([]byte("\x81\x00a"), "", "\x00")
	f.Fuzz(func(t *testing.T, b []byte, one, two string) {
		if parts, err := event.DecodeTuple(b); err == nil {
			if enc := event.AppendTuple(nil, parts...); string(enc) != string(b) {
				t.Fatalf("encode(decode(%x)) = %x", b, enc)
			}
		}
		got, err := event.DecodeTuple(event.AppendTuple(nil, one, two))
		if err != nil || len(got) != 2 || got[0] != one || got[1] != two {
			t.Fatalf("decode(encode(%q, %q)) = %q, %v", one, two, got, err)
		}
	})
}
