package consumer

import (
	"context"
	"log/slog"
)

// Log is a handler that writes one line about each event, never its payload.
type Log struct {
	logger *slog.Logger
}

// NewLog makes a Log that writes to logger.
func NewLog(logger *slog.Logger) *Log { return &Log{logger: logger} }

// Handle writes the line. Its answer is always Done.
func (l *Log) Handle(ctx context.Context, a *Attempt) Answer {
	l.logger.InfoContext(ctx, "event",
		"event_id", a.Event.ID(), "type", a.Event.Type, "source", a.Event.Source,
		"handler", a.Handler, "run_id", a.Key.RunID(), "attempt", a.Number, "origin", string(a.Event.Origin))
	return Answer{Class: Done}
}
