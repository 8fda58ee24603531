package app

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// formatVersion is the layout of the data directory that this program writes.
const formatVersion = 1

// version is the content of the file VERSION. It is written last at the first
// start, so that a directory without it never answered anybody.
type version struct {
	Format      int    `json:"format"`
	Incarnation string `json:"incarnation"` // of the claim store that belongs to this directory
	Epoch       uint32 `json:"epoch"`       // of the last start
	QueueLast   uint64 `json:"queue_last"`  // the queue's last sequence at that start
	LockInode   uint64 `json:"lock_inode"`  // with LockBirth: a copy of the directory has another LOCK
	LockBirth   int64  `json:"lock_birth"`  // nanoseconds since 1970; 0 where the file system does not say

	// Events up to DoubtTo may have run in time that this directory does not know
	// of; Returned: what waits from before that has not been held yet.
	DoubtTo  uint64 `json:"doubt_to,omitempty"`
	Returned bool   `json:"returned,omitempty"`

	// LostFrom: the claims were given up by an operator's word, and a new store
	// takes their place. Every handler begins at this sequence. 0: nothing of that.
	LostFrom uint64 `json:"lost_from,omitempty"`

	// QuietFrom: events from here on were stored in quarantine, and have not run in
	// any time. 0: there was none since the last start that ran anything.
	QuietFrom uint64 `json:"quiet_from,omitempty"`

	CRC32C string `json:"crc32c"` // of the text with this one empty
}

// encode gives the file's text, with its checksum.
func (v version) encode() ([]byte, error) {
	v.CRC32C = ""
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode VERSION: %w", err)
	}
	v.CRC32C = fmt.Sprintf("%08x", crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	b, err = json.Marshal(v)
	return append(b, '\n'), err
}

var (
	errVersionDamaged = errors.New("it does not hold what was written to it")
	errVersionNewer   = errors.New("it is newer")
)

// decodeVersion reads what encode writes, to the letter.
func decodeVersion(b []byte) (version, error) {
	var v version
	if err := json.Unmarshal(b, &v); err != nil || v.Format < 1 {
		return v, errVersionDamaged
	}
	if v.Format > formatVersion {
		return v, errVersionNewer
	}
	if again, err := v.encode(); err != nil || string(again) != string(b) {
		return v, errVersionDamaged
	}
	v.CRC32C = ""
	return v, nil
}

// dataDir is the locked data directory.
type dataDir struct {
	path    string
	lock    *os.File
	version version // zero at the first start
}

// openDataDir makes the directory if needed, takes its lock and reads VERSION.
// The errors are for operators.
func openDataDir(path string) (*dataDir, error) {
	if err := os.MkdirAll(path, 0o750); err != nil {
		return nil, &OperatorError{
			What: "cannot make the data directory", Where: path, Err: err,
			Hint: "create it and give it to the user that runs idemd, or set data_dir to one that is writable",
		}
	}
	lock, err := os.OpenFile(filepath.Join(path, "LOCK"), os.O_RDWR|os.O_CREATE, 0o640)
	if err != nil {
		return nil, &OperatorError{
			What: "cannot write in the data directory", Where: path, Err: err,
			Hint: "give the directory to the user that runs idemd (chown), or set data_dir to one that is writable",
		}
	}
	d := &dataDir{path: path, lock: lock}
	if err := d.claim(); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return d, nil
}

func (d *dataDir) claim() error {
	switch err := unix.Flock(int(d.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return &OperatorError{
			What: "another idemd is running on this data directory", Where: d.path,
			Hint: "stop it first (systemctl stop idemd), or give this one a data_dir of its own",
		}
	case err != nil:
		return fmt.Errorf("lock %s: %w", d.lock.Name(), err)
	}
	b, err := os.ReadFile(d.versionPath())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return &OperatorError{
			What: "cannot read the file VERSION", Where: d.versionPath(), Err: err,
			Hint: "make it readable for the user that runs idemd",
		}
	}
	switch d.version, err = decodeVersion(b); {
	case errors.Is(err, errVersionNewer):
		return &OperatorError{
			What:  fmt.Sprintf("the data directory has format %d, this idemd knows up to %d", d.version.Format, formatVersion),
			Where: d.versionPath(),
			Hint:  "run the idemd that wrote it, or a newer one; nothing was changed",
		}
	case err != nil:
		return &OperatorError{
			What: "the file VERSION is damaged", Where: d.versionPath(),
			Hint: "restore the data directory from a backup; do not delete the file: it says to which claim store the queue belongs",
		}
	}
	return nil
}

func (d *dataDir) versionPath() string { return filepath.Join(d.path, "VERSION") }

func (d *dataDir) queuePath() string { return filepath.Join(d.path, "queue") }

func (d *dataDir) dedupPath() string { return filepath.Join(d.path, "dedup") }

// hasQueue reports whether a start came as far as making the queue. The claim
// store is made before it.
func (d *dataDir) hasQueue() bool {
	_, err := os.Stat(d.queuePath())
	return err == nil
}

// unusable says what to do about a half of the directory that cannot be opened.
func (d *dataDir) unusable(what, where string, err error) error {
	hint := "the error says what is wrong; if files are damaged or lost, restore the whole data directory from a backup"
	if errors.Is(err, fs.ErrPermission) {
		hint = "give the whole data directory to the user that runs idemd (chown -R)"
	}
	return &OperatorError{What: "cannot open the " + what, Where: where, Err: err, Hint: hint}
}

// first reports whether the directory never finished a start.
func (d *dataDir) first() bool { return d.version.Format == 0 }

// copied reports whether the directory is a copy of the one that VERSION was
// written in. A copy's halves need not be of the same instant.
func (d *dataDir) copied() (bool, error) {
	inode, birth, err := fileBirth(d.lock)
	if err != nil {
		return false, fmt.Errorf("stat %s: %w", d.lock.Name(), err)
	}
	return inode != d.version.LockInode || birth != d.version.LockBirth, nil
}

// seal writes VERSION for the present start: from now on the directory's halves
// belong together. Returned says that time went back: then the events up to
// queueLast are in doubt, until this start and later ones have dealt with them.
func (d *dataDir) seal(incarnation string, epoch uint32, queueLast uint64, returned bool) error {
	inode, birth, err := fileBirth(d.lock)
	if err != nil {
		return fmt.Errorf("stat %s: %w", d.lock.Name(), err)
	}
	doubtTo := d.version.DoubtTo
	if returned {
		doubtTo = d.beforeQuiet(queueLast)
	}
	d.version = version{
		Format: formatVersion, Incarnation: incarnation, Epoch: epoch, QueueLast: queueLast,
		LockInode: inode, LockBirth: birth, DoubtTo: doubtTo, Returned: returned, LostFrom: d.version.LostFrom,
	}
	return d.writeVersion()
}

// beforeQuiet gives the last event up to queueLast that may have run.
func (d *dataDir) beforeQuiet(queueLast uint64) uint64 {
	if d.version.QuietFrom > 0 {
		return min(queueLast, d.version.QuietFrom-1)
	}
	return queueLast
}

// quarantined notes that nothing runs that is stored behind queueLast.
func (d *dataDir) quarantined(queueLast uint64) error {
	if d.version.QuietFrom > 0 {
		return nil
	}
	d.version.QuietFrom = queueLast + 1
	return d.writeVersion()
}

// abandon notes that the claims are given up, and from where on events are looked
// at again. What up to queueLast may have run is in doubt.
func (d *dataDir) abandon(from, queueLast uint64) error {
	d.version.LostFrom, d.version.DoubtTo, d.version.Returned = from, d.beforeQuiet(queueLast), true
	return d.writeVersion()
}

// held notes that what waited from before the time that was lost is held.
func (d *dataDir) held() error {
	d.version.Returned, d.version.LostFrom = false, 0
	return d.writeVersion()
}

func (d *dataDir) writeVersion() error {
	b, err := d.version.encode()
	if err != nil {
		return err
	}
	if err := replaceFile(d.versionPath(), b); err != nil {
		return fmt.Errorf("write VERSION: %w", err)
	}
	return nil
}

// unlock gives the directory free.
func (d *dataDir) unlock() error { return d.lock.Close() }

// replaceFile writes path so that a crash leaves the old or the new content.
func replaceFile(path string, content []byte) error {
	tmp := path + "." + rand.Text()[:8] + ".tmp"
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
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
