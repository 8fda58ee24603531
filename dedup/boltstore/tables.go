package boltstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"idemd/dedup"
	"idemd/event"
)

// A step is what the janitor asks the store to do: a bounded piece of moving
// records out of the journals, towards the files that are unlinked as a whole when
// all that is in them has expired. One step runs at a time, beside the writer,
// which only learns of the result. A crash in a step leaves the files that it
// began with, or those that it made.

// Step says what a step did. Nothing was there to do when Took is empty.
type Step struct {
	Took    []string // files that count for nothing any more
	Made    []string // files that took their place
	Keys    uint64   // that were moved
	Carried uint64   // open records that were written again, into the present journal
	Expired uint64   // keys that had expired and were left behind
	Bytes   int64    // of what was taken
	More    bool     // there is another such step to do at once
}

// recall gives the latest record that the tables have of a key, nil when there is
// none. The error wraps dedup.ErrDamaged.
func recall(tables []*openTable, hash event.Hash, tuple string) (*dedup.Record, error) {
	if len(tables) == 0 {
		return nil, nil
	}
	var path string
	var found *dedup.Record
	err := guarded(&path, func() error {
		for _, t := range tables {
			path = t.path
			rec, err := t.find(hash, tuple)
			if err != nil {
				return err
			}
			// Where there are two, the older one has expired.
			if rec != nil && (found == nil || rec.Fence > found.Fence) {
				found = rec
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", dedup.ErrDamaged, err)
	}
	return found, nil
}

// readers are those who look something up. Files that they may use stay open
// until they are out: a step that takes files away lets later readers into a new
// group, and waits for this one.
type readers = sync.WaitGroup

// foresee looks a key up in the tables on its caller's goroutine, so that the
// writer need not: what it finds holds as long as the tables are the same.
func (s *Store) foresee(r *request) {
	s.mu.RLock()
	var buf [4]ref
	known := len(s.index.refs(buf[:0], r.hash)) > 0
	tables, group := s.tables, s.readers
	r.tablesAt, r.foreseen = s.tablesAt, !known
	group.Add(1)
	s.mu.RUnlock()
	defer group.Done()
	if !known {
		r.old, r.oldErr = recall(tables, r.hash, r.key.Tuple)
	}
}

// recall gives what the tables have of r's key.
func (w *writer) recall(r *request) (*dedup.Record, error) {
	if r.foreseen && r.tablesAt == w.s.tablesAt {
		return r.old, r.oldErr
	}
	return recall(w.s.tables, r.hash, r.key.Tuple)
}

// inWriter runs task between two groups of the writer and waits for it. It has not
// run when the error is ErrClosed.
func (s *Store) inWriter(task func(w *writer) error) error {
	r := &request{done: make(chan struct{}, 1), task: func() error { return task(s.writer) }}
	if err := s.ask(context.Background(), r); err != nil {
		return err
	}
	return r.err
}

// change is what a step does to the set of files.
type change struct {
	step     string // its name in fault points
	journals []*journal
	tables   []*openTable
	made     []*openTable
	moving   int // keys that are in made and still in the index
	left     *readers
}

// apply makes MANIFEST tell of the change, and then shows it to readers.
func (w *writer) apply(c *change) error {
	names, now := w.names, dedup.At(w.s.cfg.Now())
	names.Making, names.Gone = nil, slices.Clone(names.Gone)
	names.Files, names.Tables = slices.Clone(names.Files), slices.Clone(names.Tables)
	for _, j := range c.journals {
		e := sealedEntry(j)
		names.Gone = append(names.Gone, goneEntry{At: now, Journal: &e})
		names.Files = slices.DeleteFunc(names.Files, func(f fileEntry) bool { return f.Name == e.Name })
		names.Moved = max(names.Moved, j.next()-1)
	}
	for _, t := range c.tables {
		names.Gone = append(names.Gone, goneEntry{At: now, Table: &t.table})
		names.Tables = slices.DeleteFunc(names.Tables, func(e table) bool { return e.Name == t.Name })
	}
	for _, t := range c.made {
		names.Tables = append(names.Tables, t.table)
	}
	if err := w.s.failOn(w.s.machine.writeText(w.s.cfg.Dir, manifestName, names)); err != nil {
		return err
	}
	w.s.fault(c.step + "-manifest")
	w.names = names
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	tables := slices.DeleteFunc(slices.Clone(w.s.tables), func(t *openTable) bool { return slices.Contains(c.tables, t) })
	for _, t := range c.made {
		w.s.disk.Add(t.Size)
	}
	w.s.tables = append(slices.Clone(c.made), tables...)
	w.s.tablesAt++
	w.s.moving = c.moving
	c.left, w.s.readers = w.s.readers, &readers{}
	return nil
}

// intend makes MANIFEST say that these tables are being made, so that what a
// crash leaves of them is known to count for nothing.
func (w *writer) intend(making []string) error {
	names := w.names
	names.Making = making
	if err := w.s.failOn(w.s.machine.writeText(w.s.cfg.Dir, manifestName, names)); err != nil {
		return err
	}
	w.names = names
	return nil
}

// products are the tables that a step makes.
type products struct {
	s       *Store
	step    string
	from    []string
	writers []*tableWriter
	opened  []*openTable
}

// create begins a table under a name that no file has had.
func (p *products) create(name func(n int) string, from int) (*tableWriter, error) {
	n := from
	for p.s.tableNames[name(n)] {
		n++
	}
	p.s.tableNames[name(n)] = true
	making := []string{name(n)}
	for _, w := range p.writers {
		making = append(making, w.table.Name)
	}
	if err := p.s.inWriter(func(w *writer) error { return w.intend(making) }); err != nil {
		return nil, err
	}
	w, err := newTableWriter(p.s.machine, p.s.cfg.Dir, name(n), p.s.born, p.from)
	if err != nil {
		return nil, err
	}
	w.table.Made = dedup.At(p.s.cfg.Now())
	p.writers = append(p.writers, w)
	return w, nil
}

// publish gives the tables their names and opens them.
func (p *products) publish(pace *pacer) error {
	p.s.fault(p.step + "-made")
	if err := pace.rest(); err != nil {
		return err
	}
	for _, w := range p.writers {
		if err := w.publish(); err != nil {
			return err
		}
	}
	if err := p.s.failOn(p.s.machine.syncDir(p.s.cfg.Dir)); err != nil {
		return err
	}
	p.s.fault(p.step + "-named")
	for _, w := range p.writers {
		t, err := loadTable(p.s.cfg.Dir, &w.table, p.s.born)
		if err != nil {
			return err
		}
		p.opened = append(p.opened, t)
	}
	return nil
}

// discard removes what was made, after err. It leaves everything in its place when
// nobody knows what MANIFEST says.
func (p *products) discard(err error) error {
	errs := []error{err}
	for _, t := range p.opened {
		errs = append(errs, t.close())
	}
	for _, w := range p.writers {
		if !p.s.down.Load() {
			errs = append(errs, w.abandon())
		}
	}
	return errors.Join(errs...)
}

func (p *products) names() []string {
	var names []string
	for _, w := range p.writers {
		names = append(names, w.table.Name)
	}
	return names
}

// pacer makes a step rest as long as it works, so that it leaves half of the disk
// and of one core to everybody else.
type pacer struct {
	s     *Store
	ctx   context.Context
	began time.Time
}

// rest is called often. The error is that the step must end.
func (p *pacer) rest() error {
	if err := p.s.ready(p.ctx); err != nil {
		return err
	}
	worked := time.Since(p.began)
	if worked < p.s.machine.workFor {
		return nil
	}
	wait := time.NewTimer(worked)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-p.ctx.Done():
		return p.ctx.Err()
	case <-p.s.closing:
		return dedup.ErrClosed
	}
	p.began = time.Now()
	return nil
}

func (s *Store) pacer(ctx context.Context) *pacer { return &pacer{s: s, ctx: ctx, began: time.Now()} }

// beginStep lets one step run at a time; end it by s.steps.Unlock. A step that
// needs room is not begun on a full disk.
func (s *Store) beginStep(ctx context.Context, needsRoom bool) error {
	s.steps.Lock()
	err := s.ready(ctx)
	if err == nil && needsRoom && s.Full() {
		err = errDiskFull
	}
	if err != nil {
		s.steps.Unlock()
	}
	return err
}
