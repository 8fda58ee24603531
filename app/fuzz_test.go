package app

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// FuzzUnits: durations and sizes are read as they are written, or refused.
func FuzzUnits(f *testing.F) {
	for _, text := range []string{"1d12h", "15d", "1h30m", "20GiB", "0B", "9223372036854775807ns", "106751d", "-1s", "1.5h", "1d1d"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if d, err := ParseDuration(text); err == nil {
			if again, err := ParseDuration(d.String()); d < 0 || err != nil || again != d {
				t.Errorf("%q is %d, written as %s, read as %d: %v", text, d, d, again, err)
			}
		}
		if s, err := ParseSize(text); err == nil {
			if again, err := ParseSize(s.String()); s < 0 || err != nil || again != s {
				t.Errorf("%q is %d, written as %s, read as %d: %v", text, s, s, again, err)
			}
		}
	})
}

// FuzzVersion: whatever stands in VERSION, the data directory is opened with a
// version that a start wrote, or the operator is told what is wrong.
func FuzzVersion(f *testing.F) {
	f.Add([]byte(`{"format":1,"incarnation":"00","epoch":5,"lock_inode":1,"lock_birth":2}` + "\n"))
	f.Add([]byte(`{"format":2}`))
	f.Add([]byte(`{"format":-1}`))
	f.Add([]byte(``))
	f.Add([]byte(`null`))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := os.WriteFile(filepath.Join(dir, "VERSION"), b, 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := openDataDir(dir)
		if err != nil {
			var operator *OperatorError
			if !errors.As(err, &operator) || operator.Hint == "" {
				t.Fatalf("error %v", err)
			}
			return
		}
		if d.first() || d.version.Format != formatVersion {
			t.Errorf("%q is taken for %+v", b, d.version)
		}
		if err := d.unlock(); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzMark: a mark that is understood is written the same way again.
func FuzzMark(f *testing.F) {
	f.Add(mark{incarnation: "0123", epoch: 7, number: 9}.String())
	f.Add("idemd mark 1 x 1 2\n3")
	f.Fuzz(func(t *testing.T, text string) {
		if m, err := parseMark(text); err == nil && m.String() != text {
			t.Fatalf("%q became %q", text, m)
		}
	})
}
