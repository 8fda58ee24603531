package dedup

import (
	"context"
	"errors"
	"time"

	"idemd/event"
)

// The errors of a Store.
var (
	// ErrFenced is returned when an operation's fence or state is not the
	// record's any more: somebody else holds or has settled the run. The caller
	// stops and touches neither record nor delivery.
	ErrFenced = errors.New("claim is no longer held")
	// ErrUnavailable is returned when it is not known whether the operation is
	// on stable storage. The same operation may be tried again.
	ErrUnavailable = errors.New("claim store is unavailable")
	// ErrDamaged is returned when the key's record cannot be read. Nothing was
	// decided or changed, trying again will not help, and other keys are not
	// concerned.
	ErrDamaged = errors.New("claim record cannot be read")
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("claim store is closed")
)

// Progress is how far a handler has come in the stream.
type Progress struct {
	FirstSeq  uint64 `json:"first_seq"`  // where the handler began
	SettledTo uint64 `json:"settled_to"` // every delivery up to here has a durable record or is finished
}

// Within gives the progress that is possible in a stream whose next event has the
// sequence first. What is beyond it is not known to be done: the stream was
// restored from an older copy, and other events will come under those sequences.
func (p Progress) Within(first uint64) Progress {
	return Progress{FirstSeq: min(p.FirstSeq, first), SettledTo: min(p.SettledTo, max(first, 1)-1)}
}

// RearmAfter is how long Due keeps quiet about a record that it gave out and
// that nobody acted on.
const RearmAfter = 30 * time.Second

// Filter chooses open records. Zero fields do not restrict.
type Filter struct {
	States   []State // of Started, Waiting, InDoubt, Dead
	Handler  string  // handler id
	Reason   string  // reason code
	Owner    Owner
	DeadOnly bool // Started in an epoch before this one
}

// Stats counts what the store holds.
type Stats struct {
	Keys       uint64                    `json:"keys"`        // records, the latest of each key; what expired may be among them
	Open       map[string]map[string]int `json:"open"`        // handler id -> state -> records that still need somebody
	LastNumber uint64                    `json:"last_number"` // records ever written
	Epoch      uint32                    `json:"epoch"`
	DiskBytes  int64                     `json:"disk_bytes"`
	Syncs      uint64                    `json:"syncs"`           // since start
	Parts      map[string]Part           `json:"parts,omitempty"` // "journal", "hot", "cold"; a store may have none
}

// Part is one kind of a store's files.
type Part struct {
	Files  int    `json:"files"`
	Keys   uint64 `json:"keys"`
	Bytes  int64  `json:"bytes"`  // those of the journals with what waits to be unlinked
	Oldest Time   `json:"oldest"` // when the first of its records expires; 0 when it is not known
}

// Store keeps the records. All methods may be called from any goroutine. Every
// operation on one key happens at one place in one order, decided by Decide.
type Store interface {
	// Do applies op to key's record and returns when the result is on stable
	// storage, or at once where Result.Ride allows it. It returns ErrFenced
	// (with the record as it stands), ErrDamaged, ErrUnavailable or ErrClosed.
	Do(ctx context.Context, key event.Key, op Op) (Result, error)

	// Get gives key's record. False means that there is none, or an expired one. It
	// returns ErrDamaged or ErrClosed.
	Get(ctx context.Context, key event.Key) (Record, bool, error)

	// List gives up to limit open records after cursor ("" begins), oldest
	// change first, and the cursor of the next page, "" at the end. A record that
	// cannot be read is left out: only its own key suffers.
	List(ctx context.Context, f Filter, cursor string, limit int) ([]Record, string, error)

	// Due gives up to limit records of handler whose WakeAt is now or past, each
	// at most once in RearmAfter, soonest first; and the time of the next one
	// after them, 0 when there is none. A record that cannot be read is left out, and
	// tried again after RearmAfter.
	Due(ctx context.Context, handler string, now Time, limit int) ([]Record, Time, error)

	// Wake is signalled when one of handler's records is due sooner than what
	// Due said last. It has a buffer of one.
	Wake(handler string) <-chan struct{}

	// Begin gives how far handler has come in a stream whose next event has the
	// sequence first, at least 1. A handler that is new begins there. One that is
	// known cannot have come further: its progress is brought back, see
	// Progress.Within. A beginning, and what was brought back, is on stable
	// storage when Begin returns.
	Begin(ctx context.Context, handler string, first uint64) (Progress, error)

	// Settle notes how far handler has come. It is durable within two seconds,
	// and after Close; a crash may bring back an earlier value.
	Settle(handler string, to uint64)

	// Epoch is the number of this process life; every fence of it is greater
	// than those of earlier ones.
	Epoch() uint32

	Stats() Stats

	// Failed gives the error after which no operation can succeed any more: the
	// process must end.
	Failed() <-chan error

	// Check verifies the store's own consistency: that the index, the heap of
	// wake-ups and the sets of open records agree with what is on disk.
	Check(ctx context.Context) error

	// Close makes everything durable and ends the store. It may be called twice.
	Close() error
}
