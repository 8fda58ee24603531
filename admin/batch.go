package admin

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// Batch is a registered reason to run events once more. Its id becomes a part of
// the key of each run in it, so that a run in a batch happens once however often
// it is asked for.
type Batch struct {
	ID      string    `json:"id"` // bat_ and 26 characters, random
	Reason  string    `json:"reason"`
	Who     string    `json:"who"` // who registered it
	Created time.Time `json:"created"`
	Runs    uint64    `json:"runs"` // that replays have begun in it
}

// MaxReason is the longest reason of a batch in bytes.
const MaxReason = 256

// batches is the register: a file that only grows, one batch a line. A batch is
// there when add has returned, whatever happens to the process or the machine; a
// line that was torn is cut off at the next start.
type batches struct {
	mu   sync.Mutex
	file *os.File
	size int64   // of what is whole
	all  []Batch // oldest first
}

// openBatches reads the register in dir, or begins one. A line that is damaged is
// left out and told.
func openBatches(dir string, log *slog.Logger) (*batches, error) {
	path := filepath.Join(dir, "batches")
	content, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read batches: %w", err)
	}
	whole := content[:strings.LastIndexByte(string(content), '\n')+1]
	b := &batches{size: int64(len(whole))}
	for line := range strings.Lines(string(whole)) {
		var one Batch
		if err := decodeLine(line, &one); err != nil {
			log.Error("a line of the register of batches is damaged: its batch is not known any more", "file", path, "error", err)
			continue
		}
		b.all = append(b.all, one)
	}
	if b.file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o640); err != nil {
		return nil, fmt.Errorf("open batches: %w", err)
	}
	if err = b.file.Truncate(b.size); err == nil {
		err = errors.Join(b.file.Sync(), syncDir(dir))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open batches: %w", err), b.file.Close())
	}
	return b, nil
}

// add registers a batch. It is on stable storage when add returns; after an error
// there is none.
func (b *batches) add(reason, who string, now time.Time) (Batch, error) {
	one := Batch{ID: "bat_" + strings.ToLower(rand.Text()), Reason: reason, Who: who, Created: now.UTC()}
	line, err := encodeLine(one)
	if err != nil {
		return Batch{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, err = b.file.WriteAt(line, b.size); err == nil {
		err = b.file.Sync()
	}
	if err != nil {
		return Batch{}, errors.Join(fmt.Errorf("register batch: %w", err), b.file.Truncate(b.size))
	}
	b.size += int64(len(line))
	b.all = append(b.all, one)
	return one, nil
}

// list gives all batches, the newest first.
func (b *batches) list() []Batch {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := slices.Clone(b.all)
	slices.Reverse(all)
	return all
}

// find gives the batch that word names: its id, or a beginning of it that no
// other one has.
func (b *batches) find(word string) (Batch, error) {
	var found []Batch
	for _, one := range b.list() {
		if one.ID == word || len(word) >= minPrefix && strings.HasPrefix(one.ID, word) {
			found = append(found, one)
		}
	}
	switch len(found) {
	case 0:
		return Batch{}, &Error{CodeRefused, fmt.Sprintf("no batch %q is registered", word), "make one: idemd batch new --reason TEXT"}
	case 1:
		return found[0], nil
	}
	return Batch{}, &Error{CodeAmbiguous, fmt.Sprintf("more than one batch begins with %s", word), "give more of the id"}
}

func (b *batches) close() error { return b.file.Close() }
