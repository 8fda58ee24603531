package janitor

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	keepReports  = 90 * 24 * time.Hour
	reportPrefix = "reports-"
	reportSuffix = ".jsonl"
	maxLine      = 64 << 10 // bytes
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// reports are kept in one file a day: a line each, its CRC32C and then JSON. They
// are evidence for people: a line that a crash or a disk has damaged is left out,
// and nothing waits for the disk.
type reports struct {
	mu  sync.Mutex
	dir string
}

func openReports(dir string) (*reports, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("make directory of reports: %w", err)
	}
	return &reports{dir: dir}, nil
}

func reportFile(day time.Time) string {
	return reportPrefix + day.UTC().Format(time.DateOnly) + reportSuffix
}

func encodeReport(r Report) ([]byte, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode report: %w", err)
	}
	return fmt.Appendf(nil, "%08x %s\n", crc32.Checksum(b, castagnoli), b), nil
}

func decodeReport(line []byte) (Report, bool) {
	var r Report
	var sum uint32
	head, body, found := bytes.Cut(line, []byte(" "))
	if _, err := fmt.Sscanf(string(head), "%08x", &sum); err != nil || !found || crc32.Checksum(body, castagnoli) != sum {
		return r, false
	}
	return r, json.Unmarshal(body, &r) == nil
}

// add keeps a report, and drops the days that are too old.
func (rs *reports) add(r Report) error {
	line, err := encodeReport(r)
	if err != nil {
		return err
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	path := filepath.Join(rs.dir, reportFile(r.Began))
	_, err = os.Stat(path)
	newDay := errors.Is(err, os.ErrNotExist)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640)
	if err != nil {
		return err
	}
	_, err = f.Write(line)
	if err = errors.Join(err, f.Close()); err != nil || !newDay {
		return err
	}
	return rs.prune(r.Began.Add(-keepReports))
}

// prune removes the files of days before a moment.
func (rs *reports) prune(before time.Time) error {
	days, err := rs.days()
	for _, name := range days {
		if name < reportFile(before) {
			err = errors.Join(err, os.Remove(filepath.Join(rs.dir, name)))
		}
	}
	return err
}

// days lists the files, oldest first.
func (rs *reports) days() ([]string, error) {
	entries, err := os.ReadDir(rs.dir)
	if err != nil {
		return nil, fmt.Errorf("read reports: %w", err)
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), reportPrefix) && strings.HasSuffix(e.Name(), reportSuffix) {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}

func (rs *reports) list(task string, since time.Time, limit int) ([]Report, error) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	days, err := rs.days()
	if err != nil {
		return nil, err
	}
	all := []Report{}
	for _, name := range slices.Backward(days) {
		if name < reportFile(since) || len(all) >= limit {
			break
		}
		of, err := readReports(filepath.Join(rs.dir, name))
		if err != nil {
			return nil, err
		}
		for _, r := range slices.Backward(of) {
			if len(all) < limit && !r.Began.Before(since) && (task == "" || r.Task == task) {
				all = append(all, r)
			}
		}
	}
	return all, nil
}

func readReports(path string) ([]Report, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read reports: %w", err)
	}
	var all []Report
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		if r, ok := decodeReport(lines.Bytes()); ok {
			all = append(all, r)
		}
	}
	err = lines.Err()
	if errors.Is(err, bufio.ErrTooLong) { // damage
		err = nil
	}
	return all, errors.Join(err, f.Close())
}
