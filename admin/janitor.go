package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"idemd/janitor"
)

// Janitor is what the server asks about the periodic tasks.
type Janitor struct {
	States  func() []janitor.State
	Reports func(task string, since time.Time, limit int) ([]janitor.Report, error)
	// Run runs a task at once. ConfirmClock is the operator's word that the
	// machine's clock is right.
	Run func(ctx context.Context, task string, confirmClock bool) (janitor.Report, error)
}

// JanitorReports is how the tasks stand, and what their last runs did, newest
// first.
type JanitorReports struct {
	Tasks []janitor.State  `json:"tasks"`
	Items []janitor.Report `json:"items"`
}

const maxReports = 1000

func (s *Server) janitorReports(r *http.Request) (any, error) {
	q := r.URL.Query()
	since, err := time.ParseDuration(orString(q.Get("since"), "24h"))
	if err != nil {
		return nil, &Error{CodeBadRequest, "since is no duration", "write it like 24h"}
	}
	limit, err := strconv.Atoi(orString(q.Get("limit"), "100"))
	if err != nil || limit < 1 || limit > maxReports {
		return nil, &Error{CodeBadRequest, fmt.Sprintf("limit is not between 1 and %d", maxReports), ""}
	}
	items, err := s.b.Janitor.Reports(q.Get("task"), time.Now().Add(-since), limit)
	if err != nil {
		return nil, err
	}
	return JanitorReports{Tasks: s.b.Janitor.States(), Items: items}, nil
}

func orString(s, fallback string) string {
	if s == "" {
		return fallback
	}
	return s
}

// runJanitor answers with the report also of a run that failed: its error is in
// there.
func (s *Server) runJanitor(r *http.Request) (any, error) {
	task := r.PathValue("task")
	report, err := s.b.Janitor.Run(r.Context(), task, r.URL.Query().Get("confirm_clock") == "true")
	switch {
	case errors.Is(err, janitor.ErrNoTask):
		return nil, &Error{CodeNotFound, "there is no task " + strconv.Quote(task), "idemd janitor report lists them"}
	case err != nil && report.Error == "":
		return nil, err
	}
	return report, nil
}

// JanitorReports gives the reports of a task, of all when it is empty, that are
// not older than since.
func (c *Client) JanitorReports(ctx context.Context, task string, since time.Duration, limit int) (JanitorReports, error) {
	query := url.Values{"since": {since.String()}, "limit": {strconv.Itoa(limit)}}
	setQuery(query, "task", task)
	return call[JanitorReports](ctx, c, http.MethodGet, "/v1/janitor", query, nil)
}

// RunJanitor runs a task and gives its report.
func (c *Client) RunJanitor(ctx context.Context, task string, confirmClock bool) (janitor.Report, error) {
	return one[janitor.Report](ctx, c, http.MethodPost, "/v1/janitor/", task, "", url.Values{"confirm_clock": {strconv.FormatBool(confirmClock)}}, nil)
}
