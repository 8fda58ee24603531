package consumer

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"idemd/dedup"
	"idemd/event"
)

// SideLog keeps the runs that succeeded without a claim while the claim store did
// not answer (StoreUnavailable Allow), until they are merged into the store. A
// delivery whose run is in it is acked: it is as durable as a record. It is safe
// for concurrent use.
//
// The file holds frames: length, CRC32C, and a JSON value of so many bytes.
type SideLog struct {
	path string
	log  *slog.Logger

	merging sync.Mutex // one at a time; before mu

	mu      sync.Mutex
	file    *os.File
	size    int64
	entries []sideEntry
	runs    map[string]int // key's tuple -> place in entries
	count   atomic.Int64   // of entries, for those who only look
}

// sideEntry is one such run.
type sideEntry struct {
	Tuple  []byte        `json:"tuple"` // of its key
	Seq    uint64        `json:"seq"`
	Effect dedup.Effect  `json:"effect"`
	Origin event.Origin  `json:"origin"`
	Sum    []byte        `json:"sum"`   // of the payload's fingerprint
	Rules  []byte        `json:"rules"` // of the same
	Retain time.Duration `json:"retain"`
	At     time.Time     `json:"at"`
}

func newSideEntry(r *run, spec *Spec, now time.Time) sideEntry {
	fp := r.ev.Fingerprint
	return sideEntry{
		Tuple: []byte(r.key.Tuple), Seq: r.seq, Effect: spec.Effect, Origin: r.ev.Origin,
		Sum: fp.Sum[:], Rules: fp.Rules[:], Retain: spec.Retain, At: now.UTC(),
	}
}

func (e *sideEntry) fingerprint() (fp event.Fingerprint) {
	copy(fp.Sum[:], e.Sum)
	copy(fp.Rules[:], e.Rules)
	return fp
}

const (
	sideHead    = 8       // bytes before an entry
	maxSideSize = 1 << 16 // bytes of an entry
	maxSideRuns = 100_000 // about 50 MB; what is beyond waits for the store
)

var errSideFull = errors.New("the side log is full")

// OpenSideLog reads the log at path, which is made when it is missing. A torn end,
// as a crash leaves it, is cut. Of a damaged one what stands before the damage
// counts; the file is kept beside it.
func OpenSideLog(path string, log *slog.Logger) (*SideLog, error) {
	l := &SideLog{path: path, log: log, runs: map[string]int{}}
	var err error
	if l.file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o640); err != nil {
		return nil, fmt.Errorf("open side log: %w", err)
	}
	if err := l.load(); err != nil {
		return nil, errors.Join(fmt.Errorf("read side log: %w", err), l.file.Close())
	}
	return l, nil
}

func (l *SideLog) load() error {
	b, err := io.ReadAll(l.file)
	if err != nil {
		return err
	}
	entries, good, damaged := decodeSide(b)
	for _, e := range entries {
		l.take(e)
	}
	l.size = int64(good)
	if good == len(b) {
		return nil
	}
	if !damaged {
		l.log.Warn("the end of the side log was not whole and is cut: a crash leaves it like that", "at", good, "bytes", len(b)-good)
	} else {
		aside := fmt.Sprintf("%s.damaged-%s", l.path, time.Now().UTC().Format("20060102T150405Z"))
		if err := os.WriteFile(aside, b, 0o640); err != nil {
			return err
		}
		l.log.Error("the side log is damaged: runs that stand behind the damage may run again", "at", good, "kept", aside)
	}
	if err := l.file.Truncate(l.size); err != nil {
		return err
	}
	return l.file.Sync()
}

// decodeSide gives the entries of a side log and where they end. Damaged says that
// what follows is not what a crash leaves.
func decodeSide(b []byte) (entries []sideEntry, good int, damaged bool) {
	for {
		rest := b[good:]
		if len(rest) < sideHead {
			return entries, good, false
		}
		n := int(binary.LittleEndian.Uint32(rest))
		if n > maxSideSize {
			return entries, good, true
		}
		if len(rest) < sideHead+n {
			return entries, good, holdsFrame(rest)
		}
		var e sideEntry
		if !sumFits(rest, n) || json.Unmarshal(rest[sideHead:sideHead+n], &e) != nil {
			// The last frame may be half on the disk.
			return entries, good, len(rest) > sideHead+n || holdsFrame(rest)
		}
		if _, err := event.ParseKey(string(e.Tuple)); err != nil {
			return entries, good, true
		}
		entries = append(entries, e)
		good += sideHead + n
	}
}

// holdsFrame tells damage from a torn end, where a length reaches beyond the file:
// a frame is written when the one before it is on stable storage, so that what a
// crash leaves is part of one frame and no whole one stands behind its beginning.
// Rest is no longer than a frame may be.
func holdsFrame(rest []byte) bool {
	for at := 1; at+sideHead < len(rest); at++ {
		b := rest[at:]
		if n := binary.LittleEndian.Uint32(b); n > 0 && uint64(n) <= uint64(len(b)-sideHead) && sumFits(b, int(n)) {
			return true
		}
	}
	return false
}

// sumFits reports whether the n bytes of the frame that b begins with are those
// that were written.
func sumFits(b []byte, n int) bool {
	return crc32.Checksum(b[sideHead:sideHead+n], crc32.MakeTable(crc32.Castagnoli)) == binary.LittleEndian.Uint32(b[4:])
}

func encodeSide(e *sideEntry) ([]byte, error) {
	payload, err := json.Marshal(e)
	if err == nil && len(payload) > maxSideSize {
		err = errors.New("entry is too long")
	}
	if err != nil {
		return nil, err
	}
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(payload)))
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(payload, crc32.MakeTable(crc32.Castagnoli)))
	return append(b, payload...), nil
}

// take notes an entry that is on stable storage; mu is held, or nobody else knows l.
func (l *SideLog) take(e sideEntry) {
	l.runs[string(e.Tuple)] = len(l.entries)
	l.entries = append(l.entries, e)
	l.count.Store(int64(len(l.entries)))
}

// add puts a run on stable storage.
func (l *SideLog) add(e sideEntry) error {
	b, err := encodeSide(&e)
	if err != nil {
		return fmt.Errorf("encode side log: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return fmt.Errorf("write side log: %w", os.ErrClosed)
	}
	if len(l.entries) >= maxSideRuns {
		return errSideFull
	}
	_, err = l.file.WriteAt(b, l.size)
	if err == nil {
		err = l.file.Sync()
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write side log: %w", err), l.file.Truncate(l.size))
	}
	l.size += int64(len(b))
	l.take(e)
	return nil
}

// find gives the entry of a run that waits to be merged.
func (l *SideLog) find(key event.Key) (sideEntry, bool) {
	if l == nil || l.count.Load() == 0 {
		return sideEntry{}, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	i, ok := l.runs[key.Tuple]
	if !ok {
		return sideEntry{}, false
	}
	return l.entries[i], true
}

// Waiting is how many runs wait to be merged.
func (l *SideLog) Waiting() int { return int(l.count.Load()) }

func (l *SideLog) full() bool { return l.count.Load() >= maxSideRuns }

// Merge gives the store the runs that wait, and forgets them when all are on
// stable storage there. It may be called at any time; what a crash interrupts is
// done again. The error is that of a store that does not answer.
func (l *SideLog) Merge(ctx context.Context, store dedup.Store) (merged int, err error) {
	l.merging.Lock()
	defer l.merging.Unlock()
	for {
		l.mu.Lock()
		todo := l.entries[merged:]
		if len(todo) == 0 {
			defer l.mu.Unlock()
			return merged, l.clear()
		}
		l.mu.Unlock()
		for i := range todo {
			if err := mergeSide(ctx, store, &todo[i]); err != nil {
				return 0, fmt.Errorf("merge side log: %w", err)
			}
			merged++
		}
	}
}

// clear forgets everything; mu is held.
func (l *SideLog) clear() error {
	if len(l.entries) == 0 || l.file == nil {
		return nil
	}
	if err := l.file.Truncate(0); err != nil {
		return fmt.Errorf("empty side log: %w", err)
	}
	l.size, l.entries = 0, nil
	clear(l.runs)
	l.count.Store(0)
	if err := l.file.Sync(); err != nil { // a restart may merge them once more, which changes nothing
		return fmt.Errorf("empty side log: %w", err)
	}
	return nil
}

func mergeSide(ctx context.Context, store dedup.Store, e *sideEntry) error {
	key, err := event.ParseKey(string(e.Tuple))
	if err != nil {
		return err
	}
	for {
		rec, found, err := store.Get(ctx, key)
		if errors.Is(err, dedup.ErrDamaged) {
			return nil // nobody can run it, either
		}
		if err != nil {
			return err
		}
		op := mergeOp(&rec, found, e)
		if op == nil {
			return nil
		}
		if _, err = store.Do(ctx, key, op); !errors.Is(err, dedup.ErrFenced) {
			return err
		}
	}
}

// mergeOp gives what a run that succeeded without a claim means for its record;
// nil where that knows better, or where a retry is under way that nobody can take
// back.
func mergeOp(rec *dedup.Record, found bool, e *sideEntry) dedup.Op {
	reason := dedup.Reason{Code: dedup.ReasonUnclaimed, Detail: "it ran while the claim store did not answer"}
	switch {
	case !found || rec.State == dedup.Free:
		return dedup.Put{
			State: dedup.Done, Outcome: dedup.OutcomeDone, Effect: e.Effect, Fingerprint: e.fingerprint(), Origin: e.Origin,
			Seq: e.Seq, Attempts: 1, Retain: e.Retain, Reason: reason,
		}
	case rec.State == dedup.Started && rec.Owner == dedup.InProc, rec.State == dedup.InDoubt:
		// The grant that nobody heard of was for this very run.
		return dedup.Commit{Fence: rec.Fence, Outcome: dedup.OutcomeDone, Retain: e.Retain, Reason: reason}
	}
	return nil
}

// Close ends the log; what waits stays in the file.
func (l *SideLog) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	f := l.file
	l.file = nil
	return f.Close()
}

// SideLogPath is where a data directory has its side log.
func SideLogPath(dir string) string { return filepath.Join(dir, "side.log") }
