package app

import (
	"fmt"
	"sync"
)

// history is what holds back history that is to go for want of space.
type history struct {
	mu   sync.Mutex
	need pressure
	who  string // needs an event; empty: nobody does
}

func (h *history) set(need pressure, who string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.need, h.who = need, who
}

// held says who keeps history from going while there is too little space, "" when
// nobody does.
func (h *history) held() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.need.bytes == 0 || h.who == "" {
		return ""
	}
	return "stored events cannot be given up: " + h.who
}

// historyWarnings is what status says when the space for events runs out.
func (a *App) historyWarnings(used uint64, budget int64) []string {
	if budget <= 0 || int64(used) < budget/100*95 {
		return nil
	}
	text := fmt.Sprintf("the queue holds %d MiB of the %d MiB of [queue] max_bytes, and refuses events when it is full", used>>20, budget>>20)
	if why := a.history.held(); why != "" {
		text += "; " + why
	}
	return []string{text}
}
