package admin

import (
	"context"
	"fmt"
	"net/http"

	"idemd/dedup"
	"idemd/event"
	"idemd/queue"
)

// why tells for each handler what it did with the event.
func (s *Server) why(r *http.Request) (any, error) {
	f, err := s.find(r)
	if err != nil {
		return nil, err
	}
	w := Why{Event: s.detail(f), Handlers: []HandlerWhy{}}
	for _, h := range s.b.Handlers() {
		told, err := s.handlerWhy(r.Context(), h, f.message)
		if err != nil {
			return nil, err
		}
		w.Handlers = append(w.Handlers, told)
	}
	all, err := s.suppressions(r.Context(), f.message)
	if err != nil {
		return nil, err
	}
	for i := range w.Handlers {
		w.Handlers[i].Suppressions = all[w.Handlers[i].Handler]
	}
	return w, nil
}

func (s *Server) handlerWhy(ctx context.Context, h Handler, m queue.Message) (HandlerWhy, error) {
	rec, err := s.record(ctx, h.ID, &m.Event)
	if err != nil {
		return HandlerWhy{}, err
	}
	w := HandlerWhy{Handler: h.Name, Effect: h.Effect, Explanation: s.b.Explain(ctx, h.ID, m, rec)}
	if rec != nil {
		run, err := s.run(rec)
		if err != nil {
			return HandlerWhy{}, err
		}
		w.Run = &run
	}
	w.InBatches, err = s.batchRuns(ctx, h.ID, &m.Event)
	return w, err
}

// batchesAsked is in how many of the newest batches a run is looked for.
const batchesAsked = 100

// batchRuns gives the runs of an event at a handler that were asked for once more.
func (s *Server) batchRuns(ctx context.Context, handler string, ev *event.Event) ([]Run, error) {
	var runs []Run
	batches := s.b.Replays.batches.list()
	for _, b := range batches[:min(len(batches), batchesAsked)] {
		again := *ev
		again.Batch = b.ID
		rec, found, err := s.b.Store.Get(ctx, event.KeyFor(&again, handler))
		if err != nil {
			return nil, fmt.Errorf("get record: %w", err)
		}
		if !found {
			continue
		}
		run, err := s.run(&rec)
		if err != nil {
			return nil, err
		}
		runs = append(runs, run)
	}
	return runs, nil
}

// record gives the record that decided about ev at a handler: that of its own
// payload when another one came first under its identity. nil when there is
// none.
func (s *Server) record(ctx context.Context, handler string, ev *event.Event) (*dedup.Record, error) {
	rec, found, err := s.b.Store.Get(ctx, event.KeyFor(ev, handler))
	if err != nil {
		return nil, fmt.Errorf("get record: %w", err)
	}
	if found && rec.Origin == ev.Origin && rec.Fingerprint.Differs(ev.Fingerprint) {
		own, ownFound, err := s.b.Store.Get(ctx, event.MismatchKey(ev, handler))
		if err != nil {
			return nil, fmt.Errorf("get record: %w", err)
		}
		if ownFound {
			return &own, nil
		}
	}
	if !found {
		return nil, nil
	}
	return &rec, nil
}
