package receiver

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync/atomic"
	"time"
)

const (
	firstRead = 4 << 10                // bytes to make room for at first; many a body is no longer
	drainFor  = 500 * time.Millisecond // to read the rest of a refused body, so that the answer is seen
)

// errNoRoom is returned when too many bodies are being read, or are in memory.
// It is no fault of the request.
var errNoRoom = errors.New("no room for another body")

// body is a request's body with what it takes of the memory for all of them.
type body struct {
	bytes []byte
	taken int64         // bytes of memory
	used  *atomic.Int64 // by all bodies
}

// grow makes room for what comes next, up to the most that can come, unless the
// limit for all bodies forbids it. The last quarter is for first reads only: few
// large bodies that do not go on leave room for the many small ones.
func (b *body) grow(most, limit int64) bool {
	size := int64(firstRead)
	if b.taken > 0 {
		size, limit = 2*b.taken, limit/4*3
	}
	size = min(size, most)
	if !take(b.used, size-b.taken, limit) {
		return false
	}
	b.taken = size
	b.bytes = append(make([]byte, 0, size), b.bytes...)
	return true
}

// release gives back the memory. It may be called more than once.
func (b *body) release() {
	b.used.Add(-b.taken)
	b.taken = 0
}

// take adds to n unless that would go over the limit.
func take(n *atomic.Int64, amount, limit int64) bool {
	for {
		now := n.Load()
		if now+amount > limit {
			return false
		}
		if n.CompareAndSwap(now, now+amount) {
			return true
		}
	}
}

// readBody reads into b what the source allows, within Config.ReadTimeout. It returns errNoRoom, or what classify knows.
func (rc *Receiver) readBody(s *source, b *body, w http.ResponseWriter, r *http.Request) error {
	if r.ContentLength > s.maxBody {
		w.Header().Set("Connection", "close")
		return fmt.Errorf("read body: %w", ErrTooLarge)
	}
	if !take(&rc.reading, 1, int64(rc.cfg.Readers)) {
		return errNoRoom
	}
	defer rc.reading.Add(-1)
	if err := readUntil(w, time.Now().Add(rc.cfg.ReadTimeout)); err != nil {
		return err
	}
	most := s.maxBody + 1 // one byte of room shows the end
	if r.ContentLength >= 0 {
		most = r.ContentLength + 1
	}
	in := http.MaxBytesReader(w, r.Body, s.maxBody)
	for {
		// What a header announces is not believed: room is made for what comes.
		if len(b.bytes) == cap(b.bytes) && !b.grow(most, rc.cfg.BodyMemory) {
			return errNoRoom
		}
		n, err := in.Read(b.bytes[len(b.bytes):cap(b.bytes)])
		b.bytes = b.bytes[:len(b.bytes)+n]
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return readError(w, err)
		}
	}
	// net/http goes on reading to notice that the caller hangs up; the deadline
	// would look like that and end a held request.
	return readUntil(w, time.Time{})
}

func readError(w http.ResponseWriter, err error) error {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return fmt.Errorf("read body: %w", ErrTooLarge)
	case errors.Is(err, os.ErrDeadlineExceeded):
		w.Header().Set("Connection", "close")
		return fmt.Errorf("read body: %w", ErrSlow)
	}
	return malformed("read body: ends early")
}

// readUntil sets the time after which nothing more is read of a request; the
// zero time is never.
func readUntil(w http.ResponseWriter, at time.Time) error {
	err := http.NewResponseController(w).SetReadDeadline(at)
	if err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("set read deadline: %w", err)
	}
	return nil
}

// dropRest has net/http read what has not been read of a request for no longer
// than that. Without it, it would wait for a slow body before it answers.
func (rc *Receiver) dropRest(w http.ResponseWriter, within time.Duration) {
	if err := readUntil(w, time.Now().Add(within)); err != nil {
		rc.cfg.Logger.Debug("connection has no deadline", "error", err.Error())
	}
}
