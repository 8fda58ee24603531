package consumer

import (
	"testing"
	"time"
)

func TestGate_PausesLongerUntilTheStoreAnswers(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	g := gate{now: func() time.Time { return now }}
	if g.broken() || g.closedFor() != 0 || g.open() {
		t.Fatal("a new gate is not open")
	}
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
		want *= time.Second
		if first := g.shut(); first != (i == 0) {
			t.Errorf("pause %d: first is %v", i, first)
		}
		g.shut() // a second worker's failure in the same pause
		if d := g.closedFor(); d != want || !g.broken() {
			t.Errorf("pause %d lasts %v, want %v", i, d, want)
		}
		now = now.Add(want)
		if g.closedFor() != 0 {
			t.Errorf("pause %d does not end", i)
		}
	}
	if !g.open() || g.open() || g.broken() {
		t.Error("an answer opens the gate once")
	}
	if !g.shut() || g.closedFor() != firstPause {
		t.Error("the next trouble begins anew")
	}
}

func TestGate_HurryEndsThePauseAndMakesTheNextOneShort(t *testing.T) {
	now := time.Unix(1, 0)
	g := gate{now: func() time.Time { return now }}
	for range 6 {
		g.shut()
		now = now.Add(g.closedFor())
	}
	g.shut()
	g.hurry()
	if d := g.closedFor(); d != 0 || !g.broken() {
		t.Errorf("closed for %v, broken %v", d, g.broken())
	}
	if g.shut(); g.closedFor() > 2*firstPause {
		t.Errorf("closed for %v", g.closedFor())
	}
}
