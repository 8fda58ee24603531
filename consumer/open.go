package consumer

import (
	"container/heap"
	"maps"
	"slices"
	"sync"
	"time"

	"idemd/queue"
)

// openDeliveries knows which deliveries are open and how far the handler has
// come: every sequence up to settledTo that ever came is settled.
type openDeliveries struct {
	mu        sync.Mutex
	open      map[uint64]*queue.Delivery // by sequence; nil for one that was left and will come again
	order     seqHeap                    // sequences not settled, and some that meanwhile are
	highest   uint64                     // ever delivered
	settledTo uint64                     // as settled said last
}

// minOrder is how many settled sequences may stay in the order in any case.
const minOrder = 64

func newOpenDeliveries() *openDeliveries {
	return &openDeliveries{open: make(map[uint64]*queue.Delivery)}
}

// begin says where deliveries start.
func (o *openDeliveries) begin(start uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.settledTo = start - 1
	o.highest = start - 1
}

// add takes a delivery in. It is false for one that is open already: only its
// newer form is kept, to be marked and acked.
func (o *openDeliveries) add(d *queue.Delivery) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.highest = max(o.highest, d.Seq)
	old, known := o.open[d.Seq]
	o.open[d.Seq] = d
	if !known {
		heap.Push(&o.order, d.Seq)
	}
	return old == nil
}

// leave gives a delivery back unsettled: the queue will deliver it again.
func (o *openDeliveries) leave(seq uint64) *queue.Delivery {
	o.mu.Lock()
	defer o.mu.Unlock()
	d := o.open[seq]
	o.open[seq] = nil
	return d
}

// settle ends a delivery. It returns the delivery in its newest form, and how
// far the handler has come if that has changed, else 0.
func (o *openDeliveries) settle(seq uint64) (d *queue.Delivery, to uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	d = o.open[seq]
	delete(o.open, seq)
	o.prune()
	to = o.highest
	if len(o.order) > 0 {
		to = o.order[0] - 1
	}
	if to <= o.settledTo {
		return d, 0
	}
	o.settledTo = to
	return d, to
}

// prune drops settled sequences from the order: those at its top, and all of
// them when they are many behind one that stays open.
func (o *openDeliveries) prune() {
	if len(o.order) > 2*len(o.open)+minOrder {
		o.order = slices.Collect(maps.Keys(o.open))
		heap.Init(&o.order)
	}
	for len(o.order) > 0 {
		if _, open := o.open[o.order[0]]; open {
			return
		}
		heap.Pop(&o.order)
	}
}

// progress is up to where everything that came is settled.
func (o *openDeliveries) progress() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.settledTo
}

// all gives the open deliveries.
func (o *openDeliveries) all() []*queue.Delivery {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := make([]*queue.Delivery, 0, len(o.open))
	for _, d := range o.open {
		if d != nil {
			all = append(all, d)
		}
	}
	return all
}

// oldest is when the oldest open delivery was stored; zero when none is open.
func (o *openDeliveries) oldest() time.Time {
	var oldest time.Time
	for _, d := range o.all() {
		if oldest.IsZero() || d.Stored.Before(oldest) {
			oldest = d.Stored
		}
	}
	return oldest
}

// seqHeap is a heap of sequences, the lowest first.
type seqHeap []uint64

func (h seqHeap) Len() int           { return len(h) }
func (h seqHeap) Less(i, j int) bool { return h[i] < h[j] }
func (h seqHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *seqHeap) Push(x any) {
	if seq, ok := x.(uint64); ok {
		*h = append(*h, seq)
	}
}

// Pop implements heap.Interface.
func (h *seqHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
