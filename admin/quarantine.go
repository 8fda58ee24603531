package admin

import (
	"net/http"
	"slices"
)

// Quarantine says why events are stored and nothing runs.
type Quarantine struct {
	Reason string `json:"reason"` // which file of the claims is wrong, and how
	Hint   string `json:"hint"`   // what to do
}

// withoutClaims reports whether a route can be answered though the claims are
// damaged.
func withoutClaims(pattern string) bool {
	return slices.Contains([]string{"GET /v1/status", "GET /v1/events"}, pattern)
}

func (s *Server) refuse(*http.Request) (any, error) {
	return nil, &Error{CodeRefused, "idemd is in quarantine, nothing runs and nothing is known of runs: " + s.b.Quarantine.Reason, s.b.Quarantine.Hint}
}
