package app

import (
	"context"
	"path/filepath"

	"idemd/admin"
)

// replayPath is where batches and replays are kept.
func (d *dataDir) replayPath() string { return filepath.Join(d.path, "replay") }

// openReplays reads the batches and the replays that go on.
func (a *App) openReplays() (err error) {
	a.replays, err = admin.NewReplays(admin.ReplayConfig{
		Dir: a.dir.replayPath(), Logger: a.log.With("component", "replay"), Fault: a.opts.Fault,
	})
	if err != nil {
		return a.dir.unusable("register of batches and replays", a.dir.replayPath(), err)
	}
	a.down.onStop("register of batches", func(context.Context) error { return a.replays.Close() })
	return nil
}

// runReplays lets replays go on until the handlers stop.
func (a *App) runReplays(work context.Context) {
	a.runUntilStop(work, "replays", a.replays.Run)
}
