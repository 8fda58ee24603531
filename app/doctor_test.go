package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestDoctor_FindsWhatIsWrong(t *testing.T) {
	dir := usedDir(t)
	cfg := mustParse(t, lifecycleConfig(dir, "127.0.0.1:0", "http://127.0.0.1:9", "a"))
	before := contents(t, dir)
	failing := func() string {
		var names []string
		for _, f := range cfg.Doctor(t.Context()) {
			if !f.OK && f.Subject != "disk" && f.Subject != "sync" { // those are the machine's
				names = append(names, f.Subject)
				if f.Hint == "" || f.What == "" {
					t.Errorf("%+v says too little", f)
				}
			}
		}
		return strings.Join(names, " ")
	}
	if got := failing(); got != "" {
		t.Errorf("a sound directory: %s", got)
	}
	serveIn(t, dir, func(d *daemon) {
		d.mustSend("e2")
		if got := failing(); got != "" {
			t.Errorf("a running idemd: %s", got)
		}
	})
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(filepath.Join(dir, "VERSION"), later, later); err != nil {
		t.Fatal(err)
	}
	block := filepath.Join(dir, "queue", "jetstream", "$G", "streams", "EVENTS", "msgs", "1.blk")
	if err := harms()["bit flipped"](block, ""); err != nil {
		t.Fatal(err)
	}
	if got := failing(); got != "queue clock" {
		t.Errorf("a damaged queue and a clock that is behind: %q", got)
	}
	for name := range contents(t, dir) {
		if _, known := before[name]; !known && strings.Contains(name, "doctor") {
			t.Errorf("%s was left behind", name)
		}
	}
}
