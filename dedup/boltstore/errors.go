package boltstore

import (
	"errors"
	"fmt"
)

// The ways in which a store's directory can be wrong. Open returns each of them
// inside a DataError and leaves the directory as it found it.
var (
	// ErrAbsent is returned when the directory is missing or empty, though
	// Config.MustExist says that it must not be.
	ErrAbsent = errors.New("claim records are absent")
	// ErrMissing is returned when a file that must be there is not.
	ErrMissing = errors.New("file is missing")
	// ErrDamaged is returned when a file does not hold what was written to it.
	ErrDamaged = errors.New("file is damaged")
	// ErrMismatch is returned when a file's size or checksum is not the one in
	// MANIFEST.
	ErrMismatch = errors.New("file is not the one in MANIFEST")
	// ErrGap is returned when record numbers are not consecutive.
	ErrGap = errors.New("records are missing in between")
	// ErrBehind is returned when the journals end before the last record that
	// CHECKPOINT knows.
	ErrBehind = errors.New("records are missing at the end")
	// ErrUnclean is returned when the last life did not end with Close, though
	// Config.Stopped says that it must have.
	ErrUnclean = errors.New("it was not stopped cleanly")
	// ErrForeign is returned when a file belongs to another store or place.
	ErrForeign = errors.New("file belongs to another store")
	// ErrVersion is returned when a file has a format that this program does not
	// know.
	ErrVersion = errors.New("format version is not known")
	// ErrClock is returned when the number of this process life, which is at least
	// the minutes since 2026, would be over dedup.MaxEpoch.
	ErrClock = errors.New("clock is wrong")
)

// ErrTooLarge is returned by Do when a record would be longer than 64 KiB:
// nothing was stored.
var ErrTooLarge = errors.New("record is too large")

// DataError says which file is wrong, where and how. Err is one of the errors
// above.
type DataError struct {
	Path   string
	Offset int64 // in Path; 0 when the file as a whole is meant
	Detail string
	Err    error
}

// Error implements error.
func (e *DataError) Error() string {
	s := fmt.Sprintf("open %s: %v", e.Path, e.Err)
	if e.Offset > 0 {
		s += fmt.Sprintf(" (at byte %d)", e.Offset)
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// Unwrap gives the kind of error.
func (e *DataError) Unwrap() error { return e.Err }

// Hint tells the operator what to do about it.
func (e *DataError) Hint() string {
	switch {
	case errors.Is(e.Err, ErrAbsent):
		return "the queue holds events but the record of what was done with them is gone; " +
			"restore the whole data directory from a backup"
	case errors.Is(e.Err, ErrForeign):
		return "queue and claim records must come from one data directory; " +
			"put back the file that was here, or restore the whole directory from one backup"
	case errors.Is(e.Err, ErrVersion):
		return "a newer idemd wrote this directory; start that version, or a newer one"
	case errors.Is(e.Err, ErrUnclean):
		return "start it without --moved: it is then treated as a copy, and what it cannot know is held for you (idemd doubt list); " +
			"or stop it cleanly where it was, and move it again"
	case errors.Is(e.Err, ErrClock):
		return "set this machine's clock; nothing was changed"
	case errors.Is(e.Err, ErrBehind):
		return "the directory is older than its CHECKPOINT, or its newest journal was cut; " +
			"put back the newest journal, or restore the whole directory from a backup"
	}
	return "put back this file from a backup of the same directory, or restore the whole directory; " +
		"do not delete anything: without these records handlers would run again"
}

// syncError is a failed fsync or fdatasync. What was written before it may be
// lost, now or later, and another sync would not say so.
type syncError struct {
	path string
	err  error
}

func (e *syncError) Error() string { return fmt.Sprintf("sync %s: %v", e.path, e.err) }
func (e *syncError) Unwrap() error { return e.err }
