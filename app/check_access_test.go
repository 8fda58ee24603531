package app

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// takeAway makes a path one that idemd cannot use: of another owner where root
// runs the tests, who may read everything, else without permissions.
func takeAway(t *testing.T, path string) {
	t.Helper()
	var err error
	if os.Getuid() == 0 {
		err = os.Lchown(path, 12345, 12345)
	} else {
		err = os.Chmod(path, 0)
		t.Cleanup(func() {
			if err := os.Chmod(path, 0o700); err != nil {
				t.Error(err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestCheckDataDir_LooksAtWhatIsInIt(t *testing.T) {
	for name, c := range map[string]struct{ wrong, more string }{
		"nothing wrong":       {"", ""},
		"the queue":           {"queue", ""},
		"the claims":          {"dedup", ""},
		"a file in the queue": {"queue/a/1", ""},
		"the lock":            {"LOCK", ""},
		"two":                 {"VERSION", "queue"},
		"not ours":            {"lost+found", ""},
		"behind a link":       {"elsewhere/2", ""},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Default()
			cfg.DataDir = t.TempDir()
			for _, dir := range []string{"queue/a", "lost+found", "elsewhere"} {
				if err := os.MkdirAll(filepath.Join(cfg.DataDir, dir), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			for _, file := range []string{"LOCK", "VERSION", "queue/a/1", "elsewhere/2", "lost+found/3"} {
				if err := os.WriteFile(filepath.Join(cfg.DataDir, file), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Symlink("elsewhere", filepath.Join(cfg.DataDir, "dedup")); err != nil {
				t.Fatal(err)
			}
			for _, path := range []string{c.wrong, c.more} {
				if path == "dedup" {
					path = "elsewhere"
				}
				if path != "" {
					takeAway(t, filepath.Join(cfg.DataDir, path))
				}
			}
			got := cfg.checkDataDir()
			if fine := c.wrong == "" || c.wrong == "lost+found"; got.OK != fine {
				t.Fatalf("got %+v", got)
			}
			if !got.OK && (!strings.Contains(got.What, cfg.DataDir) || got.Hint == "" || strings.Contains(got.What, "(and 1 more)") != (c.more != "")) {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestLookAt_SaysWhoMayNot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue")
	if wrong := lookAt(path, 1, nil); wrong != nil {
		t.Errorf("it is gone: got %v", wrong)
	}
	if wrong := lookAt(path, 1, fs.ErrPermission); wrong == nil || !strings.HasPrefix(wrong.Error(), "cannot read and write "+path) {
		t.Errorf("got %v", wrong)
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	if wrong := lookAt(path, st.Uid, nil); wrong != nil {
		t.Errorf("got %v", wrong)
	}
	if wrong := lookAt(path, st.Uid+1, nil); wrong == nil || !strings.Contains(wrong.Error(), "belongs to the user") {
		t.Errorf("got %v", wrong)
	}
}
