package queue

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"idemd/event"
)

// images keeps what a power cut would leave behind at the worst: of each sync
// that finished, a copy of the directory as it was when that sync began.
type images struct {
	t    *testing.T
	dir  string // of the queue
	root string // of the copies
	last int    // later syncs do nothing, so nothing more reaches the disk; 0: all are good

	mu       sync.Mutex
	synced   int                 // newest copy whose sync has finished
	accepted []string            // events that Publish has accepted
	expect   map[int][]string    // by copy: what was accepted before the next sync finished
	parked   map[int][]event.Key // the same for Park
	keys     []event.Key
}

func (im *images) wrap(sync func() error) func() error {
	n := 0
	return func() error {
		n++
		if im.last > 0 && n > im.last {
			return nil
		}
		if err := os.CopyFS(im.path(n), os.DirFS(im.dir)); err != nil {
			im.t.Errorf("copy: %v", err)
		}
		if err := sync(); err != nil {
			return err
		}
		im.mu.Lock()
		defer im.mu.Unlock()
		im.expect[im.synced], im.parked[im.synced] = im.accepted[:len(im.accepted):len(im.accepted)], im.keys[:len(im.keys):len(im.keys)]
		im.synced = n
		return nil
	}
}

func (im *images) path(n int) string { return filepath.Join(im.root, strconv.Itoa(n)) }

func (im *images) accept(id string) {
	im.mu.Lock()
	defer im.mu.Unlock()
	im.accepted = append(im.accepted, id)
}

func (im *images) acceptParked(key event.Key) {
	im.mu.Lock()
	defer im.mu.Unlock()
	im.keys = append(im.keys, key)
}

// check opens copy n and gives what had been accepted by then and is not in it.
func (im *images) check(n int) (gone []string) {
	im.t.Helper()
	q := open(im.t, Config{Dir: im.path(n), Logger: logOf(im.t, "nats server")})
	defer closeQueue(im.t, q)
	kept := make(map[string]bool)
	if err := q.Scan(im.t.Context(), 0, func(m Message) (bool, error) {
		kept[m.Event.Identity.ID] = true
		return true, nil
	}); err != nil {
		im.t.Errorf("copy %d: %v", n, err)
	}
	for _, id := range im.expect[n] {
		if !kept[id] {
			gone = append(gone, "event "+id)
		}
	}
	for _, key := range im.parked[n] {
		if _, err := q.Parked(im.t.Context(), "crm", key); err != nil {
			gone = append(gone, fmt.Sprintf("parked event: %v", err))
		}
	}
	return gone
}

// cutUnderLoad takes images while eight publish and park, and gives how many of them
// were looked at, and what is missing.
func cutUnderLoad(t *testing.T, last int) (checked int, gone []string) {
	t.Helper()
	im := &images{t: t, last: last, dir: t.TempDir(), root: t.TempDir(), expect: make(map[int][]string), parked: make(map[int][]event.Key)}
	q := open(t, Config{Dir: im.dir, groupSync: wrapped(im.wrap)})
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for i := range 8 {
				ev := newEvent(worker*1000 + i)
				key := event.KeyFor(ev, "crm")
				if err := q.Park(t.Context(), "crm", key, ev); err != nil {
					t.Error(err)
				}
				im.acceptParked(key)
				if _, err := q.Publish(t.Context(), ev); err != nil {
					t.Error(err)
				}
				im.accept(ev.Identity.ID)
			}
		})
	}
	wg.Wait()
	im.mu.Lock()
	im.expect[im.synced], im.parked[im.synced] = im.accepted, im.keys
	im.mu.Unlock()
	closeQueue(t, q)
	for n := range im.expect {
		if n > 0 { // Open's own sync has no copy before it
			for _, what := range im.check(n) {
				gone = append(gone, fmt.Sprintf("copy %d: %s", n, what))
			}
			checked++
		}
	}
	return checked, gone
}

func TestQueue_PowerCutLosesNoAcceptedEvent(t *testing.T) {
	checked, gone := cutUnderLoad(t, 0)
	for _, what := range gone {
		t.Error(what)
	}
	if checked < 16 {
		t.Error("too few copies:", checked)
	}
}

// The test above can fail: without the group sync accepted events are missing.
func TestQueue_PowerCutWithoutTheGroupSyncIsNoticed(t *testing.T) {
	const last = 4
	checked, gone := cutUnderLoad(t, last)
	if checked == 0 || checked > last || len(gone) == 0 {
		t.Errorf("%d copies, and %d events missing", checked, len(gone))
	}
	for _, what := range gone {
		if !strings.HasPrefix(what, fmt.Sprintf("copy %d: ", last)) {
			t.Errorf("before the syncs ended: %s", what)
		}
	}
}
