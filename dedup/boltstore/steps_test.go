package boltstore

import (
	"path/filepath"
	"testing"
)

// The crash row of the windows: wherever a step dies, every key is there exactly
// once, with its record, and nothing of the step is left over.
func TestSteps_NothingIsLostByADeathAtAnyPoint(t *testing.T) {
	for _, point := range []string{
		"move-carried", "move-made", "move-named", "move-manifest", "move-published", "move-dropped",
		"merge-made", "merge-named", "merge-manifest", "merge-closed",
		"expire-manifest", "expire-closed", "unlink-removed", "unlink-manifest",
	} {
		t.Run(point, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "dedup")
			done := runChild(t, dir, point, 1, 0, childTidy+"=1")
			done = append(done, runChild(t, dir, point, 2, 0, childTidy+"=1")...)
			wantAll(t, dir, done)
			wantAll(t, dir, done)
		})
	}
}

// The same, wherever kill -9 strikes.
func TestSteps_NothingIsLostByKill9(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dedup")
	var all []string
	for range 5 {
		all = append(all, runChild(t, dir, "", 0, 3000, childTidy+"=1")...)
		wantAll(t, dir, all)
	}
}
