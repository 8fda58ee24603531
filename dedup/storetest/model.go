package storetest

import (
	"slices"
	"time"

	"idemd/dedup"
	"idemd/event"
)

// model is what a store must agree with: the protocol written a second time, with
// nothing but what the checks need.
type model struct {
	epoch   uint32
	horizon dedup.Time
	top     dedup.Fence // the greatest fence that was given out
	clock   int         // counts changes
	keys    []*modelKey
}

type modelKey struct {
	id      string
	handler string
	seq     uint64 // of its event; 0 when none stands behind it
	fences  []dedup.Fence

	modelState
	before *modelState // instead, after a crash, while the last grant may be lost
}

type modelState struct {
	state    dedup.State
	owner    dedup.Owner
	effect   dedup.Effect
	fence    dedup.Fence
	attempts uint32
	wake     dedup.Time // its due, or the end of its lease
	alarm    dedup.Time // when Due gives it out
	lease    time.Duration
	expires  dedup.Time // DONE
	changed  int
	print    event.Fingerprint // of the payload that it was made from
}

// want is what the store must answer.
type want struct {
	fenced  bool
	verdict dedup.Verdict
	fresh   bool // with a new fence
}

// to makes s the state of k, with a wake-up at wake.
func (m *model) to(k *modelKey, state dedup.State, wake dedup.Time) {
	if wake != k.wake || len(k.fences) > 0 && k.fences[len(k.fences)-1] != k.fence {
		k.alarm = wake
	}
	m.clock++
	k.state, k.wake, k.changed, k.before = state, wake, m.clock, nil
}

func (m *model) acquire(k *modelKey, op dedup.Acquire, now dedup.Time) want {
	before := k.modelState
	ended := k.state == dedup.Started && k.owner == dedup.External && k.wake <= now && k.seq == 0
	switch {
	case k.mismatch(op.Fingerprint):
		return want{verdict: dedup.Mismatch}
	case k.state == dedup.Free, k.state == dedup.Waiting && k.wake <= now:
	case ended && k.effect == dedup.Irrevocable:
		k.attempts++
		m.to(k, dedup.InDoubt, 0)
		return want{verdict: dedup.Doubtful}
	case ended:
		k.attempts++
	default:
		return want{verdict: taken(k.state)}
	}
	if k.state == dedup.Free {
		k.attempts, k.effect, k.print = 0, 0, op.Fingerprint
	}
	k.effect, k.owner, k.lease = max(k.effect, op.Effect), op.Owner, op.Lease
	m.to(k, dedup.Started, 0)
	if op.Owner == dedup.External {
		m.to(k, dedup.Started, now.Add(op.Lease))
	} else if k.effect != dedup.Irrevocable {
		k.before = &before
	}
	return want{verdict: dedup.Granted, fresh: true}
}

func (m *model) put(k *modelKey, op dedup.Put) want {
	switch {
	case k.mismatch(op.Fingerprint):
		return want{verdict: dedup.Mismatch}
	case k.state != dedup.Free:
		return want{verdict: taken(k.state)}
	}
	k.owner, k.effect, k.attempts, k.print = dedup.InProc, op.Effect, op.Attempts, op.Fingerprint
	m.to(k, op.State, op.Due)
	return want{verdict: dedup.Created, fresh: true}
}

// mismatch reports whether there is a record, of another payload. All events of
// the model have one origin, and there is one set of rules.
func (k *modelKey) mismatch(fp event.Fingerprint) bool {
	return k.state != dedup.Free && fp.Sum != k.print.Sum && !fp.IsZero() && !k.print.IsZero()
}

func taken(s dedup.State) dedup.Verdict {
	return map[dedup.State]dedup.Verdict{
		dedup.Started: dedup.Busy, dedup.Waiting: dedup.NotYet, dedup.InDoubt: dedup.Doubtful,
		dedup.Dead: dedup.Buried, dedup.Done: dedup.AlreadyDone,
	}[s]
}

// settle is Commit, Defer, Bury or Doubt: from the states in from, or nothing at
// all where it happened before.
func (m *model) settle(k *modelKey, f dedup.Fence, to dedup.State, wake dedup.Time, counts bool, from ...dedup.State) want {
	switch {
	case k.state == dedup.Free || f != k.fence:
		return want{fenced: true}
	case k.state == to:
		return want{}
	case !slices.Contains(from, k.state):
		return want{fenced: true}
	}
	if counts {
		k.attempts++
	}
	m.to(k, to, wake)
	return want{}
}

func (m *model) renew(k *modelKey, f dedup.Fence, now dedup.Time) want {
	if k.state != dedup.Started || k.owner != dedup.External || f != k.fence {
		return want{fenced: true}
	}
	m.to(k, dedup.Started, now.Add(k.lease))
	return want{}
}

func (m *model) expire(k *modelKey, op dedup.Expire, now dedup.Time) want {
	gone := k.owner == dedup.External && k.wake <= now || k.owner == dedup.InProc && k.fence.Epoch() < m.epoch
	if k.state != dedup.Started || op.Fence != k.fence || !gone {
		return want{fenced: true}
	}
	k.attempts++
	switch {
	case k.effect == dedup.Irrevocable:
		m.to(k, dedup.InDoubt, 0)
	case k.seq == 0:
		m.to(k, dedup.Free, 0)
	case op.MaxAttempts > 0 && k.attempts >= op.MaxAttempts:
		m.to(k, dedup.Dead, 0)
	default:
		m.to(k, dedup.Waiting, op.Due)
	}
	return want{}
}

func (m *model) resolve(k *modelKey, op dedup.Resolve, now dedup.Time) want {
	dead := k.state == dedup.Dead && (op.To == dedup.ResolveRetry || op.To == dedup.ResolveDrop)
	if op.Fence != k.fence || k.state != dedup.InDoubt && !dead {
		return want{fenced: true}
	}
	switch op.To {
	case dedup.ResolveRetry:
		k.attempts = 0
		m.to(k, dedup.Waiting, now)
	case dedup.ResolveBury:
		m.to(k, dedup.Dead, 0)
	default:
		m.to(k, dedup.Done, 0)
	}
	return want{fresh: true}
}

// due gives the ids that Due must give, and the time of the next.
func (m *model) due(handler string, now dedup.Time, limit int) (ids []string, next dedup.Time) {
	var set []*modelKey
	for _, k := range m.keys {
		if k.handler == handler && k.alarm != 0 {
			set = append(set, k)
		}
	}
	byAlarm := func(a, b *modelKey) int {
		if a.alarm != b.alarm {
			return int(a.alarm - b.alarm)
		}
		return a.changed - b.changed
	}
	slices.SortFunc(set, byAlarm)
	ids = []string{}
	for _, k := range set {
		if k.alarm <= now && len(ids) < limit {
			ids, k.alarm = append(ids, k.id), now.Add(dedup.RearmAfter)
		}
	}
	if len(set) > 0 {
		next = slices.MinFunc(set, byAlarm).alarm
	}
	return ids, next
}

// expireAll forgets what is DONE and expires before the horizon.
func (m *model) expireAll(horizon dedup.Time) {
	m.horizon = max(m.horizon, horizon)
	for _, k := range m.keys {
		if k.state == dedup.Done && k.expires < m.horizon {
			m.to(k, dedup.Free, 0)
		}
	}
}

// restart begins a new epoch: alarms are set anew, and external claims get one
// full lease.
func (m *model) restart(epoch uint32, now dedup.Time) {
	m.epoch = epoch
	byChange := func(a, b *modelKey) int { return a.changed - b.changed }
	for _, k := range slices.SortedFunc(slices.Values(m.keys), byChange) {
		if k.state == dedup.Started && k.owner == dedup.External {
			m.to(k, dedup.Started, now.Add(k.lease))
		}
		k.alarm = k.wake
	}
}
