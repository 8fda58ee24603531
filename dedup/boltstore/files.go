package boltstore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"idemd/event"
)

// machine is where tests get between the store and the machine. The zero value of
// each function is the real thing.
type machine struct {
	write      func(f *os.File, b []byte, off int64) (int, error)
	sync       func(f *os.File) error
	syncNames  func(dir *os.File) error // the names in a directory
	free       func(dir string) (int64, error)
	hash       func(event.Key) event.Hash
	journalMax int64         // a journal is sealed when it would grow past this
	ahead      int64         // by at least how much a journal's file reaches beyond its frames
	checkpoint time.Duration // how long CHECKPOINT may be behind
	workFor    time.Duration // how long a step works before it rests

	syncs atomic.Uint64
}

func (m *machine) fill() {
	if m.write == nil {
		m.write = (*os.File).WriteAt
	}
	if m.sync == nil {
		m.sync = datasync
	}
	if m.syncNames == nil {
		m.syncNames = (*os.File).Sync
	}
	if m.free == nil {
		m.free = freeSpace
	}
	if m.hash == nil {
		m.hash = func(k event.Key) event.Hash { return k.Hash }
	}
	if m.journalMax == 0 {
		m.journalMax = 64 << 20
	}
	if m.ahead == 0 {
		m.ahead = 256 << 10
	}
	if m.workFor == 0 {
		m.workFor = 5 * time.Millisecond
	}
	if m.checkpoint == 0 {
		m.checkpoint = time.Second
	}
}

// writeSync writes b at off and returns when it is on stable storage. The error
// is a syncError when the writing went well.
func (m *machine) writeSync(f *os.File, b []byte, off int64) error {
	if _, err := m.write(f, b, off); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return m.syncFile(f)
}

func (m *machine) syncFile(f *os.File) error {
	m.syncs.Add(1)
	if err := m.sync(f); err != nil {
		return &syncError{path: f.Name(), err: err}
	}
	return nil
}

// syncDir makes names in dir durable.
func (m *machine) syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("open directory: %w", err)
	}
	m.syncs.Add(1)
	if err := m.syncNames(f); err != nil {
		return errors.Join(&syncError{path: dir, err: err}, f.Close())
	}
	return f.Close()
}

// replace gives path the content b. After a crash path holds the old or the new
// content, whole; when replace returns it is the new one.
func (m *machine) replace(path string, b []byte) error {
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("create %s: %w", filepath.Base(tmp), err)
	}
	if err := m.writeSync(f, b, 0); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("close %s: %w", filepath.Base(tmp), err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("replace %s: %w", filepath.Base(path), err)
	}
	// From here on nobody knows which of the two a crash would leave.
	if err := m.syncDir(filepath.Dir(path)); err != nil {
		return &syncError{path: path, err: err}
	}
	return nil
}
