package storetest

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"idemd/dedup"
	"idemd/event"
)

// runModel plays random histories on a store and on the model.
func runModel(t *testing.T, open Open, durable bool, steps Steps) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(noDeadline{t}, func(rt *rapid.T) { play(t, rt, open, dir, durable, steps) })
	})
}

// noDeadline hides *testing.T from rapid, whose call of Deadline is not allowed
// in a bubble.
type noDeadline struct{ testing.TB }

// player holds one history.
type player struct {
	*model
	rt   *rapid.T
	tb   testing.TB
	open Open
	dir  string
	n    int
	s    dedup.Store
}

// play is one history, in a directory of its own.
func play(tb testing.TB, rt *rapid.T, open Open, root string, durable bool, steps Steps) {
	dir, err := os.MkdirTemp(root, "history")
	if err != nil {
		rt.Fatal(err)
	}
	p := &player{model: &model{}, rt: rt, tb: tb, open: open, dir: filepath.Join(dir, "store")}
	for _, handler := range []string{"crm", "mail"} {
		for _, id := range []string{"a", "b", "api"} {
			k := &modelKey{id: id, handler: handler, seq: uint64(len(p.keys) + 1)}
			if id == "api" {
				k.seq = 0
			}
			p.keys = append(p.keys, k)
		}
	}
	p.s = open(tb, p.dir, time.Now)
	p.epoch = p.s.Epoch()
	defer func() {
		err := errors.Join(p.s.Check(tb.Context()), p.s.Close(), os.RemoveAll(dir))
		if err != nil {
			rt.Fatalf("at the end: %v", err)
		}
	}()
	actions := map[string]func(*rapid.T){
		"": p.agree, "acquire": p.doAcquire, "commit": p.doCommit, "defer": p.doDefer, "bury": p.doBury,
		"doubt": p.doDoubt, "put": p.doPut, "renew": p.doRenew, "expire": p.doExpire, "resolve": p.doResolve,
		"due": p.doDue, "advance": func(rt *rapid.T) { time.Sleep(delay.Draw(rt, "by")) },
	}
	if durable {
		actions["reopen"] = func(*rapid.T) { p.reopen() }
		actions["crash"] = func(*rapid.T) { p.crash() }
	}
	for name, step := range steps.Tidy {
		actions[name] = func(rt *rapid.T) {
			if err := step(p.s); err != nil {
				rt.Fatalf("%s: %v", name, err)
			}
		}
	}
	if steps.MoveHorizon != nil {
		actions["horizon"] = func(rt *rapid.T) {
			to := now().Add(ahead.Draw(rt, "ahead"))
			if err := steps.MoveHorizon(p.s, to); err != nil {
				rt.Fatalf("move horizon: %v", err)
			}
			p.expireAll(to)
		}
	}
	rt.Repeat(actions)
}

// delay is around the moments at which something changes.
var delay = rapid.Map(rapid.SampledFrom([]int{0, 1, 2, 29, 30, 31, 60, 61}), func(s int) time.Duration {
	return time.Duration(s) * time.Second
})

// retention is mostly an hour, and sometimes reaches into other days.
var retention = rapid.SampledFrom([]time.Duration{time.Hour, time.Hour, 30 * time.Hour, 72 * time.Hour})

// ahead is how far the horizon is moved: seldom by as much as an hour, or a day.
// Time itself cannot pass like that: rapid would take it for the time that it has.
var ahead = rapid.Custom(func(rt *rapid.T) time.Duration {
	switch n := rapid.IntRange(0, 15).Draw(rt, "far"); {
	case n == 0:
		return 31 * time.Hour
	case n < 4:
		return 90 * time.Minute
	}
	return delay.Draw(rt, "near")
})

// retain notes when k expires if it has just become DONE.
func (p *player) retain(k *modelKey, was dedup.State, retain time.Duration) {
	if k.state == dedup.Done && was != dedup.Done {
		k.expires = now().Add(retain)
		p.expireAll(p.horizon)
	}
}

// payload is mostly the same one, sometimes another or one that was not looked at.
var payload = rapid.SampledFrom([]event.Fingerprint{{Sum: [32]byte{1}}, {Sum: [32]byte{1}}, {Sum: [32]byte{1}}, {Sum: [32]byte{2}}, {}})

func (p *player) key(rt *rapid.T) *modelKey { return rapid.SampledFrom(p.keys).Draw(rt, "key") }

// fence is mostly that of the record, and sometimes an older one of the same key.
func (p *player) fence(rt *rapid.T, k *modelKey) dedup.Fence {
	if len(k.fences) > 0 && rapid.IntRange(0, 3).Draw(rt, "stale") == 0 {
		return rapid.SampledFrom(k.fences).Draw(rt, "fence")
	}
	return k.fence
}

// do applies op, which the model says ends like w, to k.
func (p *player) do(k *modelKey, op dedup.Op, w want) {
	p.rt.Helper()
	res, err := p.s.Do(p.tb.Context(), key(k.handler, k.id), op)
	if w.fenced != errors.Is(err, dedup.ErrFenced) || !w.fenced && err != nil || res.Verdict != w.verdict {
		p.rt.Fatalf("%T of %s/%s: %v, %v; want %+v", op, k.handler, k.id, res.Verdict, err, w)
	}
	if !w.fresh {
		return
	}
	if res.Record.Fence <= p.top || res.Record.Fence.Epoch() != p.s.Epoch() {
		p.rt.Fatalf("fence %d after %d", res.Record.Fence, p.top)
	}
	p.top = res.Record.Fence
	k.fence = p.top
	k.fences = append(k.fences, p.top)
	k.alarm = k.wake
}

func (p *player) doAcquire(rt *rapid.T) {
	k := p.key(rt)
	op := dedup.Acquire{
		Effect: rapid.SampledFrom([]dedup.Effect{dedup.Idempotent, dedup.Retryable, dedup.Irrevocable}).Draw(rt, "effect"),
		Owner:  rapid.SampledFrom([]dedup.Owner{dedup.InProc, dedup.External}).Draw(rt, "owner"),
		Seq:    k.seq, Fingerprint: payload.Draw(rt, "payload"),
	}
	if op.Owner == dedup.External {
		op.Lease = time.Minute
	}
	p.do(k, op, p.acquire(k, op, now()))
}

func (p *player) doPut(rt *rapid.T) {
	k := p.key(rt)
	op := dedup.Put{Effect: dedup.Retryable, Seq: k.seq, Retain: time.Hour, Fingerprint: payload.Draw(rt, "payload")}
	op.State = rapid.SampledFrom([]dedup.State{dedup.Waiting, dedup.InDoubt, dedup.Dead, dedup.Done}).Draw(rt, "state")
	if op.State == dedup.Waiting {
		op.Due = now().Add(delay.Draw(rt, "due"))
	}
	was := k.state
	p.do(k, op, p.put(k, op))
	p.retain(k, was, op.Retain)
}

func (p *player) doCommit(rt *rapid.T) {
	k := p.key(rt)
	f := p.fence(rt, k)
	op := dedup.Commit{Fence: f, Outcome: dedup.OutcomeDone, Retain: retention.Draw(rt, "retain")}
	was := k.state
	w := p.settle(k, f, dedup.Done, 0, k.state == dedup.Started, dedup.Started, dedup.InDoubt)
	p.do(k, op, w)
	p.retain(k, was, op.Retain)
}

func (p *player) doDefer(rt *rapid.T) {
	k := p.key(rt)
	op := dedup.Defer{Fence: p.fence(rt, k), Due: now().Add(delay.Draw(rt, "due")), Counts: rapid.Bool().Draw(rt, "counts")}
	p.do(k, op, p.settle(k, op.Fence, dedup.Waiting, op.Due, op.Counts, dedup.Started))
}

func (p *player) doBury(rt *rapid.T) {
	k := p.key(rt)
	op := dedup.Bury{Fence: p.fence(rt, k), Counts: rapid.Bool().Draw(rt, "counts")}
	p.do(k, op, p.settle(k, op.Fence, dedup.Dead, 0, op.Counts, dedup.Started, dedup.Waiting))
}

func (p *player) doDoubt(rt *rapid.T) {
	k := p.key(rt)
	op := dedup.Doubt{Fence: p.fence(rt, k), Waits: rapid.Bool().Draw(rt, "waits")}
	from := dedup.Started
	if op.Waits {
		from = dedup.Waiting
	}
	p.do(k, op, p.settle(k, op.Fence, dedup.InDoubt, 0, !op.Waits, from))
}

func (p *player) doRenew(rt *rapid.T) {
	k := p.key(rt)
	op := dedup.Renew{Fence: p.fence(rt, k)}
	p.do(k, op, p.renew(k, op.Fence, now()))
}

func (p *player) doExpire(rt *rapid.T) {
	k := p.key(rt)
	op := dedup.Expire{
		Fence: p.fence(rt, k), Due: now().Add(delay.Draw(rt, "due")), MaxAttempts: rapid.Uint32Range(0, 3).Draw(rt, "max"),
	}
	p.do(k, op, p.expire(k, op, now()))
}

func (p *player) doResolve(rt *rapid.T) {
	k := p.key(rt)
	op := dedup.Resolve{Fence: p.fence(rt, k), To: dedup.Resolution(rapid.IntRange(1, 4).Draw(rt, "to")), Retain: time.Hour}
	was := k.state
	p.do(k, op, p.resolve(k, op, now()))
	p.retain(k, was, op.Retain)
}

func (p *player) doDue(rt *rapid.T) {
	handler := rapid.SampledFrom([]string{"crm", "mail"}).Draw(rt, "handler")
	limit := rapid.IntRange(1, 3).Draw(rt, "limit")
	ids, next := p.due(handler, now(), limit)
	records, at, err := p.s.Due(p.tb.Context(), handler, now(), limit)
	if got := idsOf(p.tb, records); err != nil || at != next || !slices.Equal(got, ids) {
		rt.Fatalf("due of %s: %v, next %v, %v; want %v, next %v", handler, got, at.Std(), err, ids, next.Std())
	}
}

func (p *player) reopen() {
	if err := errors.Join(p.s.Check(p.tb.Context()), p.s.Close()); err != nil {
		p.rt.Fatalf("before reopening: %v", err)
	}
	p.s = p.open(p.tb, p.dir, time.Now)
	p.restart(p.s.Epoch(), now())
}

// crash goes on with a copy of what is on disk. Grants that were answered early
// may be lost.
func (p *player) crash() {
	p.n++
	old, dir := p.s, p.dir
	p.dir = filepath.Join(filepath.Dir(dir), "crash"+strconv.Itoa(p.n))
	if err := copyDir(p.dir, dir); err != nil {
		p.rt.Fatalf("copy the store: %v", err)
	}
	p.s = p.open(p.tb, p.dir, time.Now)
	if err := errors.Join(old.Close(), os.RemoveAll(dir)); err != nil {
		p.rt.Fatalf("end the old store: %v", err)
	}
	for _, k := range p.keys {
		if k.before != nil && p.get(k).Fence != k.fence {
			k.modelState = *k.before
		}
		k.before = nil
	}
	p.restart(p.s.Epoch(), now())
}

func (p *player) get(k *modelKey) dedup.Record {
	r, ok, err := p.s.Get(p.tb.Context(), key(k.handler, k.id))
	if err != nil || ok && r.State == dedup.Free {
		p.rt.Fatalf("get %s/%s: %+v, %t, %v", k.handler, k.id, r, ok, err)
	}
	if !ok {
		return dedup.Record{} // it may give one that has expired
	}
	return r
}

// agree compares all that can be seen. It runs after every action.
func (p *player) agree(rt *rapid.T) {
	var open []*modelKey
	for _, k := range p.keys {
		r := p.get(k)
		same := r.State == k.state && (k.state == dedup.Free ||
			r.Fence == k.fence && r.Attempts == k.attempts && r.WakeAt() == k.wake && r.Effect == k.effect)
		if !same {
			rt.Fatalf("%s/%s is %+v\nwant %+v", k.handler, k.id, r, k.modelState)
		}
		if k.state.Open() {
			open = append(open, k)
		}
	}
	slices.SortFunc(open, func(a, b *modelKey) int { return cmp.Compare(a.changed, b.changed) })
	var all []dedup.Record
	for cursor := ""; ; {
		page, next, err := p.s.List(p.tb.Context(), dedup.Filter{}, cursor, 2)
		if err != nil {
			rt.Fatalf("list: %v", err)
		}
		all = append(all, page...)
		if cursor = next; cursor == "" {
			break
		}
	}
	same := func(r dedup.Record, k *modelKey) bool { return r.Key == event.Key(key(k.handler, k.id)) }
	if !slices.EqualFunc(all, open, same) {
		rt.Fatalf("listed %v, want %d records", idsOf(p.tb, all), len(open))
	}
}
