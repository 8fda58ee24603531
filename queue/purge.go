package queue

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Block is a file of consecutive events, at most 8 MiB. History goes block by
// block: nothing is ever written into one that stays.
type Block struct {
	First  uint64    // sequence of its first event
	Stored time.Time // when that was stored
	Bytes  int64     // size of the file
}

// Blocks lists the files of events, the oldest first. The last one is being
// written.
func (q *Queue) Blocks() ([]Block, error) {
	files, err := blocksOf(q.cfg.Dir, streamEvents)
	if err != nil {
		return nil, err
	}
	var all []Block
	for _, f := range files {
		b, ok, err := headOf(f.path)
		if err != nil {
			return nil, fmt.Errorf("read block: %w", err)
		}
		if ok {
			all = append(all, b)
		}
	}
	return all, nil
}

// headOf reads the beginning of a block. It is false when there is nothing yet, or
// no more.
func headOf(path string) (b Block, ok bool, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return b, false, nil
	}
	if err != nil {
		return b, false, err
	}
	head := make([]byte, recordHead)
	_, err = io.ReadFull(f, head)
	short := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	if short {
		err = nil
	}
	info, serr := f.Stat()
	if err = errors.Join(err, serr, f.Close()); err != nil || short {
		return b, false, err
	}
	seq, at := binary.LittleEndian.Uint64(head[4:]), int64(binary.LittleEndian.Uint64(head[12:]))
	return Block{First: seq, Stored: time.Unix(0, at).UTC(), Bytes: info.Size()}, seq&tombstone == 0, nil
}

// boundary gives the first event of the last block that begins at first or
// before; 0 when there is none.
func boundary(blocks []Block, first uint64) (at uint64) {
	for _, b := range blocks {
		if b.First <= first {
			at = b.First
		}
	}
	return at
}

// purgePlan decides about a stream that begins at first, and whose events before
// target may go: what PURGED is to say, and up to where (not included) to purge at
// once; 0 is nothing. What is to go is said for the time of grace before it goes.
func purgePlan(said purged, first, target uint64, now time.Time, grace time.Duration) (say purged, to uint64) {
	say = said
	if target <= first {
		return say, 0
	}
	age := said.age(now)
	pending := said.First > first
	switch {
	case pending && age < 0: // the clock went back
		say.First, say.Since = max(said.First, target), now.Unix()
	case pending && age < grace:
	case pending && grace > 0:
		if to = min(said.First, target); target > said.First {
			say.First, say.Since = target, now.Unix()
		}
	default:
		say.First, say.Since = max(said.First, target), now.Unix()
	}
	if grace <= 0 {
		say.First, to = max(said.First, target), target
	}
	return say, to
}

// nextPurge is purgePlan for a few blocks at a time. More says that some are left
// that could go at once.
func nextPurge(said purged, blocks []Block, target uint64, now time.Time, grace time.Duration) (say purged, to uint64, more bool) {
	say, to = purgePlan(said, blocks[0].First, target, now, grace)
	if to, more = slice(blocks, boundary(blocks, to)); more && grace > 0 {
		say = said // what has been said is not done yet
	}
	return say, to, more
}

// Purged is what a Purge has done.
type Purged struct {
	Events uint64 // that are gone
	Bytes  int64  // that their files had
	Said   uint64 // events that go once that has been said for long enough
	More   bool   // what is left is to go at once
}

// purgeBlocks bounds one Purge: while the server takes blocks away it stores
// nothing.
const purgeBlocks = 8

// slice bounds a purge up to the event to. It gives false when it need not.
func slice(blocks []Block, to uint64) (uint64, bool) {
	if len(blocks) > purgeBlocks && blocks[purgeBlocks].First < to {
		return blocks[purgeBlocks].First, true
	}
	return to, false
}

// Purge takes away the blocks that hold nothing but events up to upTo, of those
// that are durable. The newest block always stays. What goes is said in a file for
// the time of grace before it goes, so that a copy that is being made of the running
// directory knows that it may be missing; without grace it goes at once. One call
// takes a few blocks, and says whether there are more. A crash at any point leaves
// all of the rest.
func (q *Queue) Purge(ctx context.Context, upTo uint64, grace time.Duration) (Purged, error) {
	q.changing.Lock()
	defer q.changing.Unlock()
	select {
	case <-q.closing:
		return Purged{}, ErrClosed
	default:
	}
	blocks, err := q.Blocks()
	if err != nil || len(blocks) == 0 {
		return Purged{}, err
	}
	first, durable := blocks[0].First, q.commit.durable.load()
	say, to, more := nextPurge(q.purged, blocks, boundary(blocks, min(upTo, durable-min(durable, 1))+1), time.Now(), grace)
	if say.First != q.purged.First || say.Since != q.purged.Since {
		say.Incarnation = q.cfg.Incarnation
		err := say.write(q.dir)
		if err == nil {
			q.purged = say
			q.cfg.Fault("purge-said")
		} else if to = boundary(blocks, min(to, q.purged.First)); to <= first {
			return Purged{}, err
		} else { // what was said before a disk got full makes room on it
			q.log.Warn("no more history can go than was said before", "error", err)
		}
	}
	done := Purged{More: more}
	if to > first {
		if err := q.purge(ctx, to); err != nil {
			return Purged{}, fmt.Errorf("purge events before %d: %w", to, q.closedError(err))
		}
		done.Events, first = to-first, to
		for _, b := range blocks {
			if b.First < to {
				done.Bytes += b.Bytes
			}
		}
		q.cfg.Fault("purged")
	}
	done.Said = q.purged.First - min(q.purged.First, first)
	return done, nil
}

// purge lets the server take away whole blocks, which it does without writing into
// one that stays.
func (q *Queue) purge(ctx context.Context, to uint64) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if err := q.now().events.Purge(ctx, jetstream.WithPurgeSequence(to)); err != nil {
		return err
	}
	q.commit.touch()
	return nil
}

// NextOf gives the first durable event of one of the sources (ids; of any when
// there are none) at from or after it; one past the last durable event when there
// is none.
func (q *Queue) NextOf(ctx context.Context, sources []string, from uint64) (uint64, error) {
	end := q.commit.durable.load() + 1
	if from >= end {
		return end, nil
	}
	if len(sources) == 0 {
		return from, nil
	}
	next := end
	for _, source := range sources {
		m, err := q.readOne(ctx, streamEvents, readRequest{Seq: max(from, 1), Next: sourceFilter(source)})
		if errors.Is(err, ErrMissing) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("find the next event of %s: %w", source, err)
		}
		seq, err := storedSeq(m)
		if err != nil {
			return 0, err
		}
		next = min(next, seq)
	}
	return next, nil
}
