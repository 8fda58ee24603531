package admin

import (
	"context"
	"fmt"
	"slices"

	"idemd/event"
	"idemd/queue"
)

// Plan says what a replay would do now. It writes nothing.
func (r *Replays) Plan(ctx context.Context, asked ReplayRequest) (ReplayPlan, error) {
	now := r.now()
	req, err := r.check(asked, now)
	if err != nil {
		return ReplayPlan{}, err
	}
	p := planner{plan: ReplayPlan{Request: req, Handlers: []HandlerPlan{}, Sample: []ReplaySample{}}, seen: make(map[event.Hash]struct{}), view: r.s.view}
	from, to, err := r.bounds(ctx, &req)
	if err == nil {
		err = r.each(ctx, &req, now, from, to, p.add, func(uint64) error { return nil })
	}
	if err != nil {
		return ReplayPlan{}, fmt.Errorf("plan replay: %w", err)
	}
	return p.plan, nil
}

// planner counts choices.
type planner struct {
	plan ReplayPlan
	seen map[event.Hash]struct{} // keys that would run
	view func(queue.Message) Event
}

func (p *planner) add(c choice) error {
	i := slices.IndexFunc(p.plan.Handlers, func(h HandlerPlan) bool { return h.Handler == c.handler.Name })
	if i < 0 {
		i = len(p.plan.Handlers)
		p.plan.Handlers = append(p.plan.Handlers, HandlerPlan{Handler: c.handler.Name, Effect: c.handler.Effect, Skipped: map[Skip]uint64{}})
	}
	if c.skip == "" {
		if _, repeat := p.seen[c.key.Hash]; repeat {
			c.skip = SkipRepeat
		}
		p.seen[c.key.Hash] = struct{}{}
	}
	p.plan.Handlers[i].count(c.skip, c.own == nil)
	if c.skip == "" {
		p.plan.Runs++
		p.sample(c)
	}
	return nil
}

// sample keeps the first events, with the handlers of each.
func (p *planner) sample(c choice) {
	s := &p.plan.Sample
	if n := len(*s); n > 0 && (*s)[n-1].Seq == c.message.Seq {
		(*s)[n-1].Runs = append((*s)[n-1].Runs, c.handler.Name)
		return
	}
	if len(*s) < SampleSize {
		*s = append(*s, ReplaySample{Event: p.view(c.message), Runs: []string{c.handler.Name}})
	}
}
