package admin

import (
	"context"
	"net/http"
)

// NewBatch registers a batch: a reason to run events once more.
func (c *Client) NewBatch(ctx context.Context, reason string) (Batch, error) {
	return call[Batch](ctx, c, http.MethodPost, "/v1/batches", nil, map[string]string{"reason": reason})
}

// Batches lists the batches, the newest first.
func (c *Client) Batches(ctx context.Context) (Page[Batch], error) {
	return call[Page[Batch]](ctx, c, http.MethodGet, "/v1/batches", nil, nil)
}

// PlanReplay says what a replay would do. Nothing is written.
func (c *Client) PlanReplay(ctx context.Context, req ReplayRequest) (ReplayPlan, error) {
	return call[ReplayPlan](ctx, c, http.MethodPost, "/v1/replays/plan", nil, req)
}

// StartReplay begins a replay, which goes on in the daemon.
func (c *Client) StartReplay(ctx context.Context, req ReplayRequest) (Replay, error) {
	return call[Replay](ctx, c, http.MethodPost, "/v1/replays", nil, req)
}

// Replays lists the replays, the newest first.
func (c *Client) Replays(ctx context.Context) (Page[Replay], error) {
	return call[Page[Replay]](ctx, c, http.MethodGet, "/v1/replays", nil, nil)
}

// Replay gives one replay by its id or a unique beginning of it.
func (c *Client) Replay(ctx context.Context, id string) (Replay, error) {
	return one[Replay](ctx, c, http.MethodGet, "/v1/replays/", id, "", nil, nil)
}

// ActOnReplay pauses, resumes or cancels a replay.
func (c *Client) ActOnReplay(ctx context.Context, id string, action ReplayAction) (Replay, error) {
	return one[Replay](ctx, c, http.MethodPost, "/v1/replays/", id, "/"+string(action), nil, nil)
}
