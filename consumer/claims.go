package consumer

import (
	"sync"

	"idemd/event"
)

// claims knows, per key, who in this pool is between asking for a claim and
// having settled it, and which requests were not answered.
type claims struct {
	mu    sync.Mutex
	count map[string]int       // by the key's tuple
	lost  map[string]event.Key // by the key's tuple
}

func newClaims() *claims {
	return &claims{count: make(map[string]int), lost: make(map[string]event.Key)}
}

func (c *claims) enter(tuple string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count[tuple]++
}

func (c *claims) leave(tuple string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.count[tuple]--; c.count[tuple] <= 0 {
		delete(c.count, tuple)
	}
}

// alone reports whether one only has entered.
func (c *claims) alone(tuple string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count[tuple] == 1
}

// setLost notes that a request for key's claim was not answered, or that one was.
func (c *claims) setLost(key event.Key, lost bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if lost {
		c.lost[key.Tuple] = key
	} else {
		delete(c.lost, key.Tuple)
	}
}

func (c *claims) anyLost() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.lost) > 0
}

func (c *claims) allLost() []event.Key {
	c.mu.Lock()
	defer c.mu.Unlock()
	keys := make([]event.Key, 0, len(c.lost))
	for _, key := range c.lost {
		keys = append(keys, key)
	}
	return keys
}
