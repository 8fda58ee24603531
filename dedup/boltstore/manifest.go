package boltstore

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"

	"idemd/dedup"
)

const (
	manifestName   = "MANIFEST"
	checkpointName = "CHECKPOINT"
	textVersion    = 2 // 1 knew journals only
)

// incarnation is a random name that the directory got when it was made. Every
// file carries it.
type incarnation [16]byte

func (i incarnation) MarshalText() ([]byte, error) { return []byte(hex.EncodeToString(i[:])), nil }

func (i *incarnation) UnmarshalText(b []byte) error {
	n, err := hex.Decode(i[:], b[:min(len(b), 2*len(i))])
	if err != nil || n != len(i) || len(b) != 2*len(i) {
		return fmt.Errorf("parse incarnation %q", b)
	}
	return nil
}

// manifest names every file that holds records. It is replaced as a whole, and
// only after the files that it names are on stable storage.
type manifest struct {
	Incarnation incarnation `json:"incarnation"`
	Epoch       uint32      `json:"epoch"`
	Starts      []start     `json:"starts"`           // the latest ones, oldest first
	Files       []fileEntry `json:"files"`            // the journals, by record number
	Moved       uint64      `json:"moved,omitempty"`  // number of the last record that is in no journal any more
	Tables      []table     `json:"tables,omitempty"` // the hot and cold files
	Making      []string    `json:"making,omitempty"` // tables to come: what there is of them counts for nothing
	Gone        []goneEntry `json:"gone,omitempty"`   // files that count for nothing any more, and are still there for a while
}

// start is one opening of the store.
type start struct {
	At      dedup.Time `json:"at"`
	Unclean bool       `json:"unclean,omitempty"` // the life before did not end with Close
}

// fileEntry is one journal.
type fileEntry struct {
	Name    string `json:"name"`
	First   uint64 `json:"first"`  // number of its first record
	Sealed  bool   `json:"sealed"` // it changes no more, and the rest is known
	Size    int64  `json:"size,omitempty"`
	CRC32C  string `json:"crc32c,omitempty"`
	Records uint64 `json:"records,omitempty"`
}

// table is one hot or cold file. It never changes.
type table struct {
	Name   string     `json:"name"`
	From   []string   `json:"from"` // the files that it was made from
	Keys   uint64     `json:"keys"`
	Size   int64      `json:"size"`
	CRC32C string     `json:"crc32c"`        // of the whole file
	Head   string     `json:"head_crc32c"`   // of its first tableHead bytes
	Claims string     `json:"claims_crc32c"` // of its keys and values
	Made   dedup.Time `json:"made"`
	Newest dedup.Time `json:"newest"` // the last Committed of its records
	Oldest dedup.Time `json:"oldest"` // their first Expires
	Until  dedup.Time `json:"until"`  // their last
}

// goneEntry is a file that left the others and is unlinked after a while: a copy
// of the directory that is being made may be on its way to it.
type goneEntry struct {
	At      dedup.Time `json:"at"`
	Journal *fileEntry `json:"journal,omitempty"`
	Table   *table     `json:"table,omitempty"`
}

func (g *goneEntry) name() string {
	switch {
	case g.Journal != nil:
		return g.Journal.Name
	case g.Table != nil:
		return g.Table.Name
	}
	return ""
}

func (g *goneEntry) size() int64 {
	switch {
	case g.Journal != nil:
		return g.Journal.Size
	case g.Table != nil:
		return g.Table.Size
	}
	return 0
}

// knows reports whether a file has its place in the directory.
func (m *manifest) knows(name string) bool {
	return slices.ContainsFunc(m.Files, func(f fileEntry) bool { return f.Name == name }) ||
		slices.ContainsFunc(m.Tables, func(t table) bool { return t.Name == name }) ||
		slices.ContainsFunc(m.Gone, func(g goneEntry) bool { return g.name() == name })
}

func sealedEntry(j *journal) fileEntry {
	return fileEntry{
		Name: filepath.Base(j.path), First: j.first, Sealed: true,
		Size: j.size, CRC32C: fmt.Sprintf("%08x", j.sum), Records: j.records,
	}
}

// checkpoint is what is known once a second, and at the end.
type checkpoint struct {
	Incarnation incarnation               `json:"incarnation"`
	LastNumber  uint64                    `json:"last_number"` // of a record that is on stable storage
	Horizon     dedup.Time                `json:"horizon"`     // DONE records that expire before it have expired
	Clean       bool                      `json:"clean"`       // written by Close: nothing came after it
	Handlers    map[string]dedup.Progress `json:"handlers"`
	Past        []pastMark                `json:"past,omitempty"` // the progress at earlier times, oldest first
}

// encodeText gives a small file as people can read it and a flipped bit shows:
// a first line with kind, version and CRC32C of the rest and of the two, then
// JSON.
func encodeText(kind string, v any) ([]byte, error) {
	body, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", kind, err)
	}
	return fmt.Appendf(nil, "%s%08x\n%s\n", textHead(kind, textVersion), textSum(kind, textVersion, body), body), nil
}

func textHead(kind string, version int) string {
	return fmt.Sprintf("idemd dedup %s version %d crc32c ", kind, version)
}

func textSum(kind string, version int, body []byte) uint32 {
	return crc32.Update(crc32.Checksum([]byte(textHead(kind, version)), castagnoli), castagnoli, body)
}

// readText reads what encodeText made. Its errors are DataErrors.
func readText(dir, kind string, v any) error {
	path := filepath.Join(dir, kind)
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return &DataError{Path: path, Err: ErrMissing}
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", kind, err)
	}
	line, body, _ := bytes.Cut(b, []byte("\n"))
	body, whole := bytes.CutSuffix(body, []byte("\n"))
	var version int
	var sum uint32
	_, err = fmt.Sscanf(string(line), "idemd dedup "+kind+" version %d crc32c %x", &version, &sum)
	if err != nil || !whole || string(line) != fmt.Sprintf("%s%08x", textHead(kind, version), sum) ||
		textSum(kind, version, body) != sum {
		return &DataError{Path: path, Err: ErrDamaged}
	}
	if version < 1 || version > textVersion {
		return &DataError{Path: path, Err: ErrVersion, Detail: fmt.Sprintf("version %d", version)}
	}
	if err := json.Unmarshal(body, v); err != nil {
		return &DataError{Path: path, Err: ErrDamaged, Detail: err.Error()}
	}
	return nil
}

func (m *machine) writeText(dir, kind string, v any) error {
	b, err := encodeText(kind, v)
	if err != nil {
		return err
	}
	if err := m.replace(filepath.Join(dir, kind), b); err != nil {
		return fmt.Errorf("write %s: %w", kind, err)
	}
	return nil
}
