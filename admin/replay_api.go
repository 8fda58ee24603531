package admin

import (
	"fmt"
	"net/http"
)

// newBatch registers a batch.
func (s *Server) newBatch(r *http.Request) (any, error) {
	var req struct {
		Reason string `json:"reason"`
	}
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	if req.Reason == "" || len(req.Reason) > MaxReason {
		return nil, &Error{CodeBadRequest, fmt.Sprintf("a batch has a reason of 1 to %d bytes", MaxReason), "say why its events are to run once more"}
	}
	b, err := s.b.Replays.batches.add(req.Reason, who(r), s.b.Replays.now())
	if err != nil {
		return nil, err
	}
	s.b.Logger.Info("batch registered", "batch", b.ID, "who", b.Who, "reason", b.Reason)
	return b, nil
}

func (s *Server) listBatches(*http.Request) (any, error) {
	runs := map[string]uint64{}
	for _, rp := range s.b.Replays.List() {
		runs[rp.Request.Batch] += rp.Written
	}
	page := Page[Batch]{Items: []Batch{}}
	for _, b := range s.b.Replays.batches.list() {
		b.Runs = runs[b.ID]
		page.Items = append(page.Items, b)
	}
	return page, nil
}

func (s *Server) planReplay(r *http.Request) (any, error) {
	var req ReplayRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	return s.b.Replays.Plan(r.Context(), req)
}

func (s *Server) startReplay(r *http.Request) (any, error) {
	var req ReplayRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	return s.b.Replays.Start(r.Context(), req, who(r))
}

func (s *Server) listReplays(*http.Request) (any, error) {
	return Page[Replay]{Items: s.b.Replays.List()}, nil
}

func (s *Server) showReplay(r *http.Request) (any, error) {
	return s.b.Replays.Get(r.PathValue("replay"))
}

func (s *Server) actOnReplay(r *http.Request) (any, error) {
	return s.b.Replays.Act(r.PathValue("replay"), ReplayAction(r.PathValue("action")))
}
