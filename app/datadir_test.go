package app

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestDataDir_SecondDaemonIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	d, err := openDataDir(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = openDataDir(path)
	wantOperatorError(t, err, "another idemd is running on this data directory", path)
	if err := d.unlock(); err != nil {
		t.Fatal(err)
	}
	d, err = openDataDir(path)
	if err != nil {
		t.Fatalf("after the first one ended: %v", err)
	}
	if err := d.unlock(); err != nil {
		t.Fatal(err)
	}
}

func TestDataDir_VersionTellsStartsApart(t *testing.T) {
	path := t.TempDir()
	d := mustOpen(t, path)
	if !d.first() {
		t.Error("an empty directory is not a first start")
	}
	if err := d.seal("inc1", 7, 9, false); err != nil {
		t.Fatal(err)
	}
	want := d.version
	if want.LockInode == 0 {
		t.Error("the lock's inode is not kept")
	}
	if err := d.unlock(); err != nil {
		t.Fatal(err)
	}
	d = mustOpen(t, path)
	if d.first() || d.version != want {
		t.Errorf("version %+v, want %+v", d.version, want)
	}
	if err := d.unlock(); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(path, "*.tmp")); err != nil || len(left) > 0 {
		t.Errorf("temporary files %v, %v", left, err)
	}
}

// Case 106: a newer format is refused, never reinterpreted; nor is a damaged one.
func TestDataDir_UnknownVersionIsRefused(t *testing.T) {
	newer, err := json.Marshal(version{Format: formatVersion + 1, Incarnation: "x"})
	if err != nil {
		t.Fatal(err)
	}
	for content, want := range map[string]string{
		string(newer):   "the data directory has format 2, this idemd knows up to 1",
		"":              "the file VERSION is damaged",
		"{}":            "the file VERSION is damaged",
		`{"format":`:    "the file VERSION is damaged",
		`{"format":-1}`: "the file VERSION is damaged",
	} {
		path := t.TempDir()
		if err := os.WriteFile(filepath.Join(path, "VERSION"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := openDataDir(path)
		wantOperatorError(t, err, want, filepath.Join(path, "VERSION"))
		if after, err := os.ReadFile(filepath.Join(path, "VERSION")); err != nil || string(after) != content {
			t.Errorf("VERSION was changed to %q, %v", after, err)
		}
	}
}

func TestDataDir_UnusablePathSaysWhatToDo(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := openDataDir(filepath.Join(file, "data"))
	wantOperatorError(t, err, "cannot make the data directory", file)
}

func mustOpen(t *testing.T, path string) *dataDir {
	t.Helper()
	d, err := openDataDir(path)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func wantOperatorError(t *testing.T, err error, what, where string) {
	t.Helper()
	var op *OperatorError
	if !errors.As(err, &op) {
		t.Fatalf("error %v, want an OperatorError", err)
	}
	if op.What != what || !strings.HasPrefix(op.Where, where) || op.Hint == "" {
		t.Errorf("what %q, where %q, hint %q; want %q at %q and a hint", op.What, op.Where, op.Hint, what, where)
	}
}
