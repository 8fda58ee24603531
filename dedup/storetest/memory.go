package storetest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"idemd/dedup"
	"idemd/event"
)

// Memory is a dedup.Store that forgets everything at Close: the contract in its
// plainest form, for tests.
type Memory struct {
	now func() time.Time

	mu       sync.Mutex
	closed   bool
	number   uint64
	fences   uint64
	records  map[string]*memoryRecord
	progress map[string]dedup.Progress
	wakes    map[string]*memoryWake
}

type memoryRecord struct {
	dedup.Record
	number  uint64
	handler string
	alarm   dedup.Time
}

type memoryWake struct {
	told   dedup.Time
	signal chan struct{}
}

var _ dedup.Store = (*Memory)(nil)

// NewMemory makes an empty store.
func NewMemory(now func() time.Time) *Memory {
	return &Memory{
		now: now, records: map[string]*memoryRecord{}, progress: map[string]dedup.Progress{}, wakes: map[string]*memoryWake{},
	}
}

// enter takes the lock, unless the store is closed or ctx has ended.
func (m *Memory) enter(ctx context.Context) error {
	m.mu.Lock()
	err := ctx.Err()
	if m.closed {
		err = dedup.ErrClosed
	}
	if err != nil {
		m.mu.Unlock()
	}
	return err
}

// Do implements dedup.Store.
func (m *Memory) Do(ctx context.Context, key event.Key, op dedup.Op) (dedup.Result, error) {
	parts, err := event.DecodeKey(key.Tuple)
	if err != nil {
		return dedup.Result{}, fmt.Errorf("decode key: %w", err)
	}
	if err := m.enter(ctx); err != nil {
		return dedup.Result{}, err
	}
	defer m.mu.Unlock()
	var cur *dedup.Record
	r := m.records[key.Tuple]
	if r == nil {
		r = &memoryRecord{handler: parts.Handler}
	} else {
		cur = &r.Record
	}
	res := dedup.Decide(cur, key, op, dedup.Env{Now: dedup.At(m.now()), Next: dedup.NewFence(m.Epoch(), m.fences+1)})
	if res.Fenced {
		return res, dedup.ErrFenced
	}
	if !res.Write {
		return res, nil
	}
	if res.Record.Fence != r.Fence {
		m.fences++
	}
	m.number++
	if next := res.Record.WakeAt(); next != r.WakeAt() || res.Record.Fence != r.Fence {
		r.alarm = next
		m.ring(r)
	}
	r.Record, r.number = res.Record, m.number
	m.records[key.Tuple] = r
	if r.State == dedup.Free {
		delete(m.records, key.Tuple)
	}
	return res, nil
}

func (m *Memory) ring(r *memoryRecord) {
	w := m.wake(r.handler)
	if r.alarm == 0 || w.told != 0 && r.alarm >= w.told {
		return
	}
	w.told = r.alarm
	select {
	case w.signal <- struct{}{}:
	default:
	}
}

func (m *Memory) wake(handler string) *memoryWake {
	if m.wakes[handler] == nil {
		m.wakes[handler] = &memoryWake{signal: make(chan struct{}, 1)}
	}
	return m.wakes[handler]
}

// Get implements dedup.Store.
func (m *Memory) Get(ctx context.Context, key event.Key) (dedup.Record, bool, error) {
	if err := m.enter(ctx); err != nil {
		return dedup.Record{}, false, err
	}
	defer m.mu.Unlock()
	if r := m.records[key.Tuple]; r != nil {
		return r.Record, true, nil
	}
	return dedup.Record{}, false, nil
}

// List implements dedup.Store.
func (m *Memory) List(ctx context.Context, f dedup.Filter, cursor string, limit int) ([]dedup.Record, string, error) {
	if err := m.enter(ctx); err != nil {
		return nil, "", err
	}
	defer m.mu.Unlock()
	after, err := strconv.ParseUint("0"+cursor, 10, 64)
	if err != nil {
		return nil, "", fmt.Errorf("parse cursor: %w", err)
	}
	all := m.sorted(func(r *memoryRecord) bool {
		return r.State.Open() && r.number > after && !f.DeadOnly &&
			(len(f.States) == 0 || slices.Contains(f.States, r.State)) &&
			(f.Handler == "" || f.Handler == r.handler) && (f.Reason == "" || f.Reason == r.Reason.Code) &&
			(f.Owner == 0 || f.Owner == r.Owner)
	}, func(r *memoryRecord) int64 { return int64(r.number) })
	var out []dedup.Record
	for i, r := range all {
		if i == limit {
			return out, strconv.FormatUint(all[i-1].number, 10), nil
		}
		out = append(out, r.Record)
	}
	return out, "", nil
}

func (m *Memory) sorted(choose func(*memoryRecord) bool, by func(*memoryRecord) int64) []*memoryRecord {
	var out []*memoryRecord
	for _, r := range m.records {
		if choose(r) {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b *memoryRecord) int {
		return cmp.Or(cmp.Compare(by(a), by(b)), cmp.Compare(a.number, b.number))
	})
	return out
}

// Due implements dedup.Store.
func (m *Memory) Due(ctx context.Context, handler string, now dedup.Time, limit int) ([]dedup.Record, dedup.Time, error) {
	if err := m.enter(ctx); err != nil {
		return nil, 0, err
	}
	defer m.mu.Unlock()
	set := func(r *memoryRecord) bool { return r.handler == handler && r.alarm != 0 }
	alarm := func(r *memoryRecord) int64 { return int64(r.alarm) }
	var out []dedup.Record
	for _, r := range m.sorted(set, alarm) {
		if r.alarm <= now && len(out) < limit {
			out, r.alarm = append(out, r.Record), now.Add(dedup.RearmAfter)
		}
	}
	told := &m.wake(handler).told
	*told = 0
	if left := m.sorted(set, alarm); len(left) > 0 {
		*told = left[0].alarm
	}
	return out, *told, nil
}

// Wake implements dedup.Store.
func (m *Memory) Wake(handler string) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.wake(handler).signal
}

// Begin implements dedup.Store.
func (m *Memory) Begin(ctx context.Context, handler string, first uint64) (dedup.Progress, error) {
	if err := m.enter(ctx); err != nil {
		return dedup.Progress{}, err
	}
	defer m.mu.Unlock()
	p, ok := m.progress[handler]
	if !ok {
		p.FirstSeq = first
	}
	m.progress[handler] = p.Within(first)
	return m.progress[handler], nil
}

// Settle implements dedup.Store.
func (m *Memory) Settle(handler string, to uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p, ok := m.progress[handler]; ok {
		p.SettledTo = max(p.SettledTo, to)
		m.progress[handler] = p
	}
}

// Epoch implements dedup.Store.
func (m *Memory) Epoch() uint32 { return 1 }

// Stats implements dedup.Store.
func (m *Memory) Stats() dedup.Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := dedup.Stats{Keys: uint64(len(m.records)), Open: map[string]map[string]int{}, LastNumber: m.number, Epoch: 1}
	for _, r := range m.records {
		if r.State.Open() {
			if s.Open[r.handler] == nil {
				s.Open[r.handler] = map[string]int{}
			}
			s.Open[r.handler][r.State.String()]++
		}
	}
	return s
}

// Failed implements dedup.Store: nothing can.
func (m *Memory) Failed() <-chan error { return nil }

// Check implements dedup.Store: there is no second copy to compare with.
func (m *Memory) Check(ctx context.Context) error {
	err := m.enter(ctx)
	if err == nil {
		m.mu.Unlock()
	}
	return err
}

// Close implements dedup.Store.
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	return nil
}
