package consumer

import (
	"testing"

	"idemd/queue"
)

func delivery(seq uint64) *queue.Delivery {
	return &queue.Delivery{Message: queue.Message{Seq: seq}}
}

func TestOpenDeliveries_ProgressStopsAtTheLowestOpenOne(t *testing.T) {
	o := newOpenDeliveries()
	o.begin(5)
	for _, seq := range []uint64{5, 7, 8, 12} {
		if !o.add(delivery(seq)) {
			t.Fatalf("%d is not new", seq)
		}
	}
	for _, step := range []struct{ settle, to uint64 }{
		{8, 0},  // 5 is open, nothing new
		{5, 6},  // 7 is
		{12, 0}, // still 7
		{7, 12}, // none is open
		{7, 0},  // a second time
	} {
		if _, to := o.settle(step.settle); to != step.to {
			t.Errorf("after %d progress is %d, want %d", step.settle, to, step.to)
		}
	}
	// One that was settled comes again: progress does not go back.
	o.add(delivery(6))
	o.add(delivery(13))
	if _, to := o.settle(13); to != 0 || o.progress() != 12 {
		t.Errorf("progress is %d (%d)", o.progress(), to)
	}
	if _, to := o.settle(6); to != 13 {
		t.Errorf("progress is %d", to)
	}
}

func TestOpenDeliveries_KeepsOneOfEachSequence(t *testing.T) {
	o := newOpenDeliveries()
	o.begin(1)
	first, newer, last := delivery(1), delivery(1), delivery(1)
	if !o.add(first) || o.add(newer) || len(o.all()) != 1 || o.all()[0] != newer {
		t.Error("a delivery that is open must be replaced, not worked on again")
	}
	if o.leave(1) != newer || len(o.all()) != 0 {
		t.Error("a delivery that is left is not open")
	}
	if o.progress() != 0 {
		t.Error("a delivery that is left is not settled")
	}
	if !o.add(last) {
		t.Error("a delivery that was left is worked on again")
	}
	if d, to := o.settle(1); d != last || to != 1 {
		t.Errorf("settled %v, %d", d, to)
	}
}

// One delivery that stays open for long does not keep all that came after it.
func TestOpenDeliveries_OrderIsBoundedByWhatIsOpen(t *testing.T) {
	o := newOpenDeliveries()
	o.begin(1)
	o.add(delivery(1))
	for seq := uint64(2); seq <= 10_000; seq++ {
		o.add(delivery(seq))
		if _, to := o.settle(seq); to != 0 {
			t.Fatalf("progress is %d", to)
		}
	}
	if n := len(o.order); n > minOrder+4 {
		t.Errorf("%d sequences are kept for one open delivery", n)
	}
	o.add(delivery(10_001))
	if _, to := o.settle(1); to != 10_000 {
		t.Errorf("progress is %d, want 10000", to)
	}
}
