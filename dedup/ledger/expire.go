package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// expireStep bounds the files that one Expire removes.
const expireStep = 32

// Expire removes the files of days that ended longer ago than Retain before now,
// and the oldest ones while there are more bytes than TotalBytes: whole files, at
// most 32 of them. It gives their number. The ledger does it by itself every
// hour.
func (l *Ledger) Expire(now time.Time) (removed int, err error) {
	if l == nil {
		return 0, nil
	}
	l.files.Lock()
	defer l.files.Unlock()
	for removed < expireStep {
		s := l.expired(now)
		if s == nil {
			return removed, nil
		}
		err := s.close(false)
		if rerr := os.Remove(s.path); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
		if err != nil {
			return removed, fmt.Errorf("expire ledger: %w", err)
		}
		l.drop(s)
		removed++
	}
	return removed, nil
}

// expired gives the oldest segment if it has to go. The current one stays.
func (l *Ledger) expired(now time.Time) *segment {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.segments) == 0 || l.segments[0] == l.current {
		return nil
	}
	var bytes int64
	for _, s := range l.segments {
		bytes += s.size
	}
	s := l.segments[0]
	old := startOf(s.day + 1).Add(l.retain).Before(now)
	switch {
	case old:
		return s
	case bytes > l.cfg.TotalBytes:
		if l.stats.Early++; l.stats.Early == 1 {
			l.log.Warn("ledger is full, its oldest day goes before its time", "file", s.name())
		}
		return s
	}
	return nil
}

func (l *Ledger) drop(s *segment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.segments = l.segments[1:]
	if len(l.segments) == 0 || l.segments[0].day > s.day {
		l.arrivals.forget(s.day + 1)
	}
}
