package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Client asks a running idemd. It is safe for concurrent use. Its methods return
// ErrNotRunning when nobody listens, and *Error for what the daemon answers.
type Client struct {
	http *http.Client
}

// NewClient makes a client for the daemon that listens on the unix socket at
// path. Nothing is connected yet.
func NewClient(path string) *Client {
	// A path that leads elsewhere than where it was sent to is not followed.
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Client{http: &http.Client{CheckRedirect: stay, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
			switch {
			case err == nil:
				return conn, nil
			case len(path) > MaxSocketPath:
				return nil, fmt.Errorf("connect to %s: %w", path, ErrSocketPath)
			case notRunning(err):
				return nil, ErrNotRunning
			case errors.Is(err, fs.ErrPermission):
				return nil, &Error{CodeUnavailable, "the socket may not be opened: " + path, "run this as the user of idemd, or as a member of its group"}
			}
			return nil, err
		},
	}}}
}

// Close ends idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Status gives the state of the process.
func (c *Client) Status(ctx context.Context) (Status, error) {
	return call[Status](ctx, c, http.MethodGet, "/v1/status", nil, nil)
}

// Events lists events, newest first. A page may hold fewer than limit though
// there are more: only an empty Next is the end.
func (c *Client) Events(ctx context.Context, f EventFilter, cursor string, limit int) (Page[Event], error) {
	q := f.query()
	setQuery(q, "cursor", cursor)
	q.Set("limit", strconv.Itoa(limit))
	return call[Page[Event]](ctx, c, http.MethodGet, "/v1/events", q, nil)
}

// Event gives the event that ref names: a sequence, an evt_ id or its beginning,
// or the platform's id, which is looked for as far back as since (0: 24 h) in
// source (empty: in all).
func (c *Client) Event(ctx context.Context, ref, source string, since time.Duration, body bool) (EventDetail, error) {
	q := EventFilter{Source: source, Since: since}.query()
	if body {
		q.Set("body", "true")
	}
	return one[EventDetail](ctx, c, http.MethodGet, "/v1/events/", ref, "", q, nil)
}

// Why explains the event that ref names, as in Event.
func (c *Client) Why(ctx context.Context, ref, source string, since time.Duration) (Why, error) {
	q := EventFilter{Source: source, Since: since}.query()
	return one[Why](ctx, c, http.MethodGet, "/v1/events/", ref, "/why", q, nil)
}

// Windows judges the windows of source (its name or id; empty: of all).
func (c *Client) Windows(ctx context.Context, source string) (Windows, error) {
	return call[Windows](ctx, c, http.MethodGet, "/v1/windows", EventFilter{Source: source}.query(), nil)
}

// Tail calls fn for each event that is stored from now on, until ctx ends, fn
// returns an error, or idemd stops.
func (c *Client) Tail(ctx context.Context, f EventFilter, fn func(Event) error) error {
	resp, err := c.do(ctx, http.MethodGet, "/v1/tail", f.query(), nil)
	if err != nil {
		return err
	}
	dec := json.NewDecoder(resp.Body)
	for err == nil {
		var ev Event
		if err = dec.Decode(&ev); err == nil {
			err = fn(ev)
		}
	}
	if errors.Is(err, io.EOF) || ctx.Err() != nil {
		err = nil
	}
	return errors.Join(err, resp.Body.Close())
}

// Runs lists dead letters or runs in doubt, oldest change first.
func (c *Client) Runs(ctx context.Context, list List, f RunFilter, cursor string, limit int) (Page[Run], error) {
	q := f.query()
	setQuery(q, "cursor", cursor)
	q.Set("limit", strconv.Itoa(limit))
	return call[Page[Run]](ctx, c, http.MethodGet, "/v1/runs/"+string(list), q, nil)
}

// Run gives one run of a list by its id or a unique beginning of it.
func (c *Client) Run(ctx context.Context, list List, id string) (Run, error) {
	return one[Run](ctx, c, http.MethodGet, "/v1/runs/"+string(list)+"/", id, "", nil, nil)
}

// Resolve decides about one run and gives it as it is then.
func (c *Client) Resolve(ctx context.Context, list List, id string, r Resolve) (Run, error) {
	return one[Run](ctx, c, http.MethodPost, "/v1/runs/"+string(list)+"/", id, "", nil, r)
}

// ResolveAll decides about every run of a list that f chooses.
func (c *Client) ResolveAll(ctx context.Context, list List, f RunFilter, r Resolve) (Resolved, error) {
	return call[Resolved](ctx, c, http.MethodPost, "/v1/runs/"+string(list), f.query(), r)
}

// ActOnHandler pauses or resumes a handler, by its id or name, and gives its
// status.
func (c *Client) ActOnHandler(ctx context.Context, handler string, action HandlerAction) (HandlerStatus, error) {
	return one[HandlerStatus](ctx, c, http.MethodPost, "/v1/handlers/", handler, "/"+string(action), nil, nil)
}

func (f EventFilter) query() url.Values {
	q := url.Values{}
	setQuery(q, "source", f.Source)
	setQuery(q, "type", f.Type)
	if f.Since > 0 {
		q.Set("since", f.Since.String())
	}
	if f.Unrouted {
		q.Set("unrouted", "true")
	}
	return q
}

func (f RunFilter) query() url.Values {
	q := url.Values{}
	setQuery(q, "handler", f.Handler)
	setQuery(q, "reason", f.Reason)
	return q
}

func setQuery(q url.Values, name, value string) {
	if value != "" {
		q.Set(name, value)
	}
}

// one calls about the thing that word names. What would make another path of the
// one it stands in names nothing.
func one[T any](ctx context.Context, c *Client, method, before, word, after string, query url.Values, body any) (v T, err error) {
	switch word {
	case "", ".", "..":
		return v, &Error{CodeBadRequest, fmt.Sprintf("%q names nothing", word), "give an id"}
	}
	return call[T](ctx, c, method, before+url.PathEscape(word)+after, query, body)
}

func call[T any](ctx context.Context, c *Client, method, path string, query url.Values, body any) (v T, err error) {
	resp, err := c.do(ctx, method, path, query, body)
	if err != nil {
		return v, err
	}
	if err = json.NewDecoder(resp.Body).Decode(&v); err != nil {
		err = fmt.Errorf("read answer of %s: %w", path, err)
	}
	return v, errors.Join(err, resp.Body.Close())
}

// do sends a request; the answer is one of success.
func (c *Client) do(ctx context.Context, method, path string, query url.Values, body any) (*http.Response, error) {
	var content io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("encode request: %w", err)
		}
		content = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://idemd"+path+"?"+query.Encode(), content)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		var uerr *url.Error // names a URL that nobody typed
		if errors.As(err, &uerr) {
			err = uerr.Err
		}
		return nil, err
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	told := errorBody{}
	err = json.NewDecoder(io.LimitReader(resp.Body, maxRequest)).Decode(&told)
	if cerr := resp.Body.Close(); err == nil {
		err = cerr
	}
	if err != nil || told.Error == nil {
		return nil, &Error{CodeInternal, fmt.Sprintf("idemd answered %s", resp.Status), "see idemd's log"}
	}
	return nil, told.Error
}
