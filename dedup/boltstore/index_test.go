package boltstore

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"idemd/dedup"
	"idemd/event"
)

// Keys with one hash are told apart by their tuples, whichever of them comes,
// changes and goes first.
func TestStore_KeysWithOneHashStayApart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dedup")
	one := &machine{sync: noSync, hash: func(event.Key) event.Hash { return event.Hash{1} }}
	s := openWith(t, Config{Dir: dir}, one)
	claim := dedup.Acquire{Effect: dedup.Retryable, Owner: dedup.External, Lease: -1}
	want := map[string]dedup.Record{}
	ids := []string{"a", "b", "c", "d"}
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 500 {
		id := ids[r.IntN(len(ids))]
		key, cur := testKey("crm", id), want[id]
		var op dedup.Op
		switch {
		case cur.State == dedup.Free:
			op = claim
		case i%7 == 0:
			op = dedup.Defer{Fence: cur.Fence, Due: 1}
		case cur.State == dedup.Waiting:
			op = claim
		default:
			op = dedup.Expire{Fence: cur.Fence} // no event behind it: free again
		}
		res, err := s.Do(t.Context(), key, op)
		if err != nil {
			t.Fatalf("%d: %T of %s (%v): %v", i, op, id, cur.State, err)
		}
		want[id] = res.Record
		for _, id := range ids {
			got, ok, err := s.Get(t.Context(), testKey("crm", id))
			if w := want[id]; err != nil || ok != (w.State != dedup.Free) || ok && got != w {
				t.Fatalf("%d: %s is %+v, %t, %v; want %+v", i, id, got, ok, err, w)
			}
		}
		if err := s.Check(t.Context()); err != nil {
			t.Fatalf("%d: %v", i, err)
		}
	}
}

// As many slots as records that are open at one time, not more.
func TestIndex_SlotsAreUsedAgain(t *testing.T) {
	s := openWith(t, Config{Dir: filepath.Join(t.TempDir(), "dedup")}, lazyMachine())
	for i := range 100 {
		settle(t, s, fmt.Sprint("x", i))
	}
	if n := len(s.index.slots); n != 1 {
		t.Errorf("%d slots", n)
	}
}

// Every hash has one shard, and shards grow at different numbers of keys.
func TestIndex_ShardsAreOfUnequalSize(t *testing.T) {
	x := newIndex()
	const keys = 100_000
	for i := range keys {
		x.set(event.Hash(benchHash(uint64(i))), noRef, ref(i+1))
	}
	total := 0
	for _, m := range x.shards {
		total += len(m)
	}
	small, large := len(x.shards[0]), len(x.shards[shards-1])
	if total != keys || large < small*18/10 || large > small*21/10 {
		t.Errorf("%d keys; the smallest shard has %d, the largest %d", total, small, large)
	}
	for i := range keys {
		if r := x.refs(nil, event.Hash(benchHash(uint64(i)))); len(r) != 1 || r[0] != ref(i+1) {
			t.Fatalf("key %d is at %v", i, r)
		}
	}
	for _, h := range []event.Hash{{}, {0xff, 0xff, 0xff, 0xff, 0xff}} {
		x.set(h, noRef, 1)
	}
}

func TestEpoch_IsAheadOfEveryCopy(t *testing.T) {
	at := time.Date(2026, 1, 1, 2, 0, 59, 0, time.UTC)
	for _, tc := range []struct {
		before uint32
		now    time.Time
		want   uint32
	}{
		{0, at, 120}, {119, at, 120}, {120, at, 121}, {500, at, 501},
		{0, time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC), 1},
	} {
		if got, err := nextEpoch(tc.before, dedup.At(tc.now)); got != tc.want || err != nil {
			t.Errorf("after %d at %v: %d, %v; want %d", tc.before, tc.now, got, err, tc.want)
		}
	}
	s := openTest(t, Config{Dir: filepath.Join(t.TempDir(), "dedup"), Now: func() time.Time { return at }, Host: "h"})
	if r := settle(t, s, "1"); r.Fence != dedup.NewFence(120, 1) || r.Host != "h" || r.Committed != dedup.At(at) {
		t.Errorf("record %+v", r)
	}
}
