// Package ledger keeps what the claim store decided against: each delivery that
// was not run because its event has a record already. It answers why, and how
// late duplicates come.
//
// It is evidence and not truth: nothing is decided from it, what is damaged in it
// is left out and said, and a disk that does not take it stops nothing. Entries
// are written once a second and when the ledger is closed; a crash may lose those
// of the last second, and of the counts of a storm those of the last minute.
// Nothing is synced on its own: a power cut may lose what came after the last
// sync of the file system.
//
// Memory and disk are bounded whatever arrives: under one key the first ten
// suppressions are told one by one and the rest is counted; of one day, and of
// all of them, no more bytes are kept than Config says.
package ledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// The defaults of a Config.
const (
	DefaultRetain     = 30 * 24 * time.Hour
	DefaultDayBytes   = 64 << 20 // about 800,000 suppressions
	DefaultTotalBytes = 256 << 20
)

const (
	flushEvery  = time.Second
	expireEvery = time.Hour
	maxBuffered = 4 << 20          // bytes that wait to be written
	kickAt      = 1 << 20          // bytes after which they are written at once
	pauseAfter  = 10 * time.Second // without writing, after an error
)

// Config is what a Ledger needs.
type Config struct {
	Dir        string           // made when it is missing
	Retain     time.Duration    // how long a day is kept; DefaultRetain when 0
	DayBytes   int64            // of one day; beyond, entries are only counted
	TotalBytes int64            // of all days; beyond, the oldest go early
	Room       func() bool      // may the disk be written; nil: always
	Now        func() time.Time // time.Now when nil
	Logger     *slog.Logger
}

// Ledger is safe for concurrent use. A nil Ledger takes everything and knows
// nothing.
type Ledger struct {
	cfg Config
	log *slog.Logger

	files sync.Mutex // held around every change of files; before mu

	mu       sync.Mutex
	segments []*segment // oldest first
	current  *segment   // the last of them, or nil
	scratch  []byte
	arrivals *arrivals
	storms   *storms
	resume   time.Time // nothing is kept before, after an error
	stats    Stats
	retain   time.Duration
	closed   bool

	kick chan struct{}
	stop chan struct{}
	done chan struct{}
	once sync.Once
}

// Stats says how the ledger is.
type Stats struct {
	Noted    uint64   // suppressions since the start
	Unkept   uint64   // of them, only counted: a bound was reached, or the disk did not take them
	Early    uint64   // days that had to go before their time, for the sake of TotalBytes
	Bytes    int64    // on disk
	Damaged  []string // what cannot be read, and why
	LastFail string   // the last error; empty when there was none
}

// Open reads what is in Dir and begins to write. It does not fail: what cannot be
// read, or written, Stats tells.
func Open(ctx context.Context, cfg Config) *Ledger {
	if cfg.Retain == 0 {
		cfg.Retain = DefaultRetain
	}
	if cfg.DayBytes == 0 {
		cfg.DayBytes = DefaultDayBytes
	}
	if cfg.TotalBytes == 0 {
		cfg.TotalBytes = DefaultTotalBytes
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	l := &Ledger{
		cfg: cfg, log: cfg.Logger, retain: cfg.Retain, arrivals: newArrivals(),
		kick: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
	l.storms = newStorms(l.keep)
	if err := os.MkdirAll(cfg.Dir, 0o750); err != nil {
		l.failed(err)
	} else {
		l.load(ctx)
	}
	go l.loop()
	return l
}

// load reads all segments: for the distribution, and to see where they end.
func (l *Ledger) load(ctx context.Context) {
	all, err := listSegments(l.cfg.Dir)
	if err != nil {
		l.failed(err)
		return
	}
	for i, s := range all {
		words, res, err := l.replay(ctx, s)
		s.size = res.end
		switch {
		case err != nil:
			l.damaged(s, err.Error())
		case res.harm != "":
			l.damaged(s, res.harm)
		case res.torn: // left as it is: what cannot be read now may be readable to somebody
			l.log.Info("ledger file has a torn end, as after a crash", "file", s.name(), "bytes", res.end)
		case i == len(all)-1 && s.day == dayOf(l.cfg.Now()):
			for n, w := range words {
				s.words[w] = uint64(n)
			}
			l.current, s.begun = s, true
		}
	}
	l.segments = all
}

// replay feeds a segment's entries to the distribution and gives its words.
func (l *Ledger) replay(ctx context.Context, s *segment) (words []string, res scanned, err error) {
	res, err = scan(ctx, s.path, -1, func(b []byte) error {
		if len(b) > 0 && b[0] == kindWord {
			words = append(words, string(b[1:]))
			return nil
		}
		e, err := decodeEntry(b, words)
		if err == nil {
			l.arrivals.observe(&e)
		}
		return nil // of a kind that a later version writes
	})
	return words, res, err
}

func (l *Ledger) damaged(s *segment, why string) {
	l.log.Warn("ledger file is damaged, what follows in it is left out", "file", s.name(), "reason", why)
	l.stats.Damaged = append(l.stats.Damaged, s.name()+": "+why)
}

func (l *Ledger) failed(err error) {
	if l.stats.LastFail == "" {
		l.log.Warn("suppressions cannot be written down, they are only counted", "error", err)
	}
	l.stats.LastFail = err.Error()
	l.resume = l.cfg.Now().Add(pauseAfter)
}

// Note takes an entry in. It does not wait for the disk.
func (l *Ledger) Note(e Entry) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.stats.Noted += e.Count
	l.arrivals.observe(&e)
	l.storms.note(&e, l.cfg.Now())
}

// keep puts e among what is to be written, if the bounds allow it; mu is held.
func (l *Ledger) keep(e *Entry) {
	now := l.cfg.Now()
	s := l.segmentFor(now)
	switch {
	case now.Before(l.resume), l.cfg.Room != nil && !l.cfg.Room(), s == nil, len(s.buf) > maxBuffered:
		l.stats.Unkept += e.Count
	default:
		l.scratch = s.add(e, l.scratch)
		if len(s.buf) > kickAt {
			select {
			case l.kick <- struct{}{}:
			default:
			}
		}
	}
}

// segmentFor gives the segment to append to; nil when the day has its share.
func (l *Ledger) segmentFor(now time.Time) *segment {
	day := dayOf(now)
	if s := l.current; s != nil && !s.broken && s.day >= day {
		day = s.day // also after the clock was set back
	} else {
		number := 1
		if n := len(l.segments); n > 0 && l.segments[n-1].day >= day {
			day, number = l.segments[n-1].day, l.segments[n-1].number+1
		}
		l.current = newSegment(l.cfg.Dir, day, number)
		l.segments = append(l.segments, l.current)
	}
	var used int64
	for i := len(l.segments) - 1; i >= 0 && l.segments[i].day == day; i-- {
		used += l.segments[i].size + int64(len(l.segments[i].buf))
	}
	if used >= l.cfg.DayBytes {
		return nil
	}
	return l.current
}

func (l *Ledger) loop() {
	defer close(l.done)
	flush, expire := time.NewTicker(flushEvery), time.NewTicker(expireEvery)
	defer flush.Stop()
	defer expire.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-flush.C:
			l.flush(false)
		case <-l.kick:
			l.flush(false)
		case <-expire.C:
			if _, err := l.Expire(l.cfg.Now()); err != nil {
				l.mu.Lock()
				l.failed(err)
				l.mu.Unlock()
			}
		}
	}
}

// flush writes what waits. With all set also the counts of storms that would
// wait longer.
func (l *Ledger) flush(all bool) {
	l.files.Lock()
	defer l.files.Unlock()
	l.mu.Lock()
	l.storms.due(l.cfg.Now(), all)
	var dirty []*segment
	for _, s := range l.segments {
		if len(s.buf) > 0 {
			dirty = append(dirty, s)
		}
	}
	l.mu.Unlock()
	for _, s := range dirty {
		l.flushSegment(s)
	}
}

func (l *Ledger) flushSegment(s *segment) {
	l.mu.Lock()
	b, n := s.buf, s.inBuf
	s.buf, s.inBuf = nil, 0
	broken, last := s.broken, s == l.current
	l.mu.Unlock()
	var err error
	if !broken { // else words that b names were lost with what came before
		err = s.write(b)
	}
	if err == nil && !last {
		err = s.close(false)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err != nil:
		s.broken = true
		l.stats.Unkept += n
		l.failed(err)
	case broken:
		l.stats.Unkept += n
	default:
		s.size += int64(len(b))
	}
}

// SetRetain changes for how long a day is kept; 0 is DefaultRetain.
func (l *Ledger) SetRetain(retain time.Duration) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.retain = retain; retain == 0 {
		l.retain = DefaultRetain
	}
}

// Stats gives a picture.
func (l *Ledger) Stats() Stats {
	if l == nil {
		return Stats{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	st := l.stats
	st.Damaged = append([]string(nil), st.Damaged...)
	for _, s := range l.segments {
		st.Bytes += s.size
	}
	return st
}

// Arrivals gives the distributions of all sources and types, a source before its
// types.
func (l *Ledger) Arrivals() []Arrivals {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.arrivals.all()
}

// Close writes and syncs what waits. It may be called twice.
func (l *Ledger) Close() error {
	if l == nil {
		return nil
	}
	var err error
	l.once.Do(func() {
		close(l.stop)
		<-l.done
		l.mu.Lock()
		l.closed = true
		l.mu.Unlock()
		l.flush(true)
		l.files.Lock()
		defer l.files.Unlock()
		for _, s := range l.segments {
			if cerr := s.close(true); cerr != nil {
				err = errors.Join(err, fmt.Errorf("close ledger: %w", cerr))
			}
		}
	})
	return err
}
