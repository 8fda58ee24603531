package queue

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// purgedName is the file that says where the stream begins, or may begin. It is
// durable before anything is taken away, so that a beginning that was purged can
// be told from one that was lost.
const purgedName = "PURGED"

const purgedHead = "idemd queue PURGED version 1 crc32c "

// purged is its content. The zero value is that of a queue of which nothing was
// ever purged: there is no file.
type purged struct {
	First       uint64 `json:"first"`       // events before it may be missing, none from here on
	Since       int64  `json:"since"`       // when that was said, in Unix seconds
	Incarnation string `json:"incarnation"` // the data directory that it was said in; empty when the queue has none
}

// age is for how long it has been said; negative when the clock went back.
func (p purged) age(now time.Time) time.Duration { return now.Sub(time.Unix(p.Since, 0)) }

func (p purged) encode() ([]byte, error) { return seal(purgedHead, purgedName, p) }

func decodePurged(b []byte) (p purged, err error) {
	if err = unseal(purgedHead, b, &p); err == nil && (p.First < 2 || p.Since < 0) {
		err = errors.New("nothing can be missing before its first event")
	}
	return p, err
}

// readPurged reads the file of a directory.
func readPurged(cfg Config) (purged, error) {
	path := filepath.Join(cfg.Dir, purgedName)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return purged{}, nil
	}
	if err != nil {
		return purged{}, fmt.Errorf("read %s: %w", purgedName, err)
	}
	p, err := decodePurged(b)
	if err != nil {
		return purged{}, damage(path, "%v", err)
	}
	if cfg.Incarnation != "" && p.Incarnation != cfg.Incarnation {
		return purged{}, damage(path, "it belongs to another data directory")
	}
	return p, nil
}

// write returns when p is on stable storage.
func (p purged) write(dir *os.File) error {
	b, err := p.encode()
	if err == nil {
		err = replace(dir.Name(), purgedName, b)
	}
	if err = errors.Join(err, dir.Sync()); err != nil {
		return fmt.Errorf("write %s: %w", purgedName, err)
	}
	return nil
}

// settlePurged ends what a crash, or the copying of a running queue, has left
// half done: blocks from before a hole go, and in a copy PURGED says what is.
func (q *Queue) settlePurged(v *verifier) error {
	q.purged = v.purged
	if len(v.leftover) > 0 {
		// CLOSED knows them, and what the server noted of them is wrong afterwards.
		if err := errors.Join(removeClosed(q.dir), dropIndex(q.cfg.Dir)); err != nil {
			return err
		}
		for _, b := range v.leftover {
			if err := os.Remove(b.path); err != nil {
				return fmt.Errorf("remove a block that is purged: %w", err)
			}
		}
		q.log.Info("removed what a purge has left", "blocks", len(v.leftover))
	}
	if q.purged.First == 0 {
		return nil
	}
	if _, err := os.Stat(filepath.Join(q.cfg.Dir, closedName)); errors.Is(err, fs.ErrNotExist) {
		// The server's index may be from before a purge, or from amid one.
		if err := dropIndex(q.cfg.Dir); err != nil {
			return err
		}
	}
	if q.cfg.Copy && v.first > 1 && v.first < q.purged.First {
		// Said later than the blocks were copied: what is here is needed here.
		q.purged.First = v.first
		return q.purged.write(q.dir)
	}
	return nil
}
