package admin

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// Reload is what became of reading the configuration again.
type Reload struct {
	At       time.Time `json:"at"`
	File     string    `json:"file"`
	Took     Seconds   `json:"took"`
	DryRun   bool      `json:"dry_run"`
	Problems []string  `json:"problems"` // why it is refused as a whole; empty when it is in force
	Changes  []Change  `json:"changes"`
}

// Change is one thing that is not as it was.
type Change struct {
	Kind string     `json:"kind"` // source, handler or windows
	Name string     `json:"name"` // empty for windows
	What ChangeKind `json:"what"`
}

// ChangeKind says how something is not as it was.
type ChangeKind string

// The kinds of change.
const (
	Added   ChangeKind = "added"
	Changed ChangeKind = "changed"
	Removed ChangeKind = "removed"
)

// reload answers also for a configuration that is refused: why is in there.
func (s *Server) reload(r *http.Request) (any, error) {
	return s.b.Reload(r.Context(), r.URL.Query().Get("dry_run") == "true")
}

// Reload has the configuration read again, and returns when it is in force: when
// what ran under the one before has ended. With dryRun it only asks what that
// would change.
func (c *Client) Reload(ctx context.Context, dryRun bool) (Reload, error) {
	q := url.Values{}
	if dryRun {
		q.Set("dry_run", "true")
	}
	return call[Reload](ctx, c, http.MethodPost, "/v1/reload", q, nil)
}
