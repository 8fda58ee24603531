package admin

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
)

var errLine = errors.New("it does not hold what was written to it")

// encodeLine writes v as one line: the CRC32C of its JSON, a space, and that JSON.
func encodeLine(v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode line: %w", err)
	}
	return fmt.Appendf(nil, "%08x %s\n", checksum(text), text), nil
}

// decodeLine reads what encodeLine writes.
func decodeLine(line string, v any) error {
	sum, text, found := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
	if !found || sum != fmt.Sprintf("%08x", checksum([]byte(text))) {
		return errLine
	}
	if err := json.Unmarshal([]byte(text), v); err != nil {
		return fmt.Errorf("%w: %w", errLine, err)
	}
	return nil
}

func checksum(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// tmpSuffix is the end of names of files that are not finished.
const tmpSuffix = ".tmp"

// replaceFile writes path so that a crash, or a copy of the directory, finds the
// old or the new content.
func replaceFile(path string, content []byte) error {
	tmp := path + "." + rand.Text()[:8] + tmpSuffix
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
