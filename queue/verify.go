package queue

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// damage makes an error about a file of the queue. It wraps ErrDamaged.
func damage(path string, format string, args ...any) error {
	return fmt.Errorf("%w: %s: %s", ErrDamaged, path, fmt.Sprintf(format, args...))
}

// verify reads every record of both streams, before the server does and changes
// what it does not like. What is torn at the end of the newest block was never
// answered for: the server cuts it off. Everything else that is not as it was
// written wraps ErrDamaged, and nothing is changed.
func verify(ctx context.Context, cfg Config) (*verifier, error) {
	events, err := verifyStream(ctx, cfg, streamEvents)
	if err != nil {
		return nil, err
	}
	at := streamDir(cfg.Dir, streamEvents)
	switch {
	case events.blocks > 0 && events.last < cfg.Last:
		return nil, damage(at, "the newest event is number %d, but there was a number %d: the end is missing", events.last, cfg.Last)
	case !cfg.Copy && events.last < events.purged.First: // in a copy it may have been said later
		return nil, damage(at, "the newest event is number %d, but %s says that number %d was kept: the end is missing", events.last, purgedName, events.purged.First)
	}
	if _, err := verifyStream(ctx, cfg, streamParked); err != nil {
		return nil, err
	}
	if cfg.Copy {
		return events, nil
	}
	return events, compareClosed(cfg.Dir)
}

func verifyStream(ctx context.Context, cfg Config, stream string) (*verifier, error) {
	v := &verifier{cfg: cfg, stream: stream, events: stream == streamEvents}
	var err error
	if v.events {
		if v.purged, err = readPurged(cfg); err != nil {
			return nil, err
		}
	}
	blocks, err := blocksOf(cfg.Dir, stream)
	if err != nil {
		return nil, err
	}
	v.blocks = len(blocks)
	for i, b := range blocks {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		before := v.last
		if err := v.block(b, i == len(blocks)-1); err != nil {
			return nil, err
		}
		if v.hole && before > 0 {
			v.leftover = blocks[:i]
		}
	}
	return v, nil
}

type verifier struct {
	cfg      Config
	stream   string
	events   bool // sequences are consecutive, but for what was purged
	purged   purged
	blocks   int
	leftover []block // from before a hole that a purge has made
	first    uint64  // sequence, behind the last such hole
	last     uint64  // sequence
	hole     bool    // before the block that was read last
	buf      bytes.Buffer
}

// follows notes the sequence of the next record, and whether it may come next: it
// is consecutive, or begins a block, and what is missing before it may be purged.
func (v *verifier) follows(path string, seq uint64, begins bool) error {
	if seq != v.last+1 {
		if begins && seq > v.purged.First { // of a running queue more may be purged meanwhile
			var err error
			if v.purged, err = readPurged(v.cfg); err != nil {
				return err
			}
		}
		if !begins || seq <= v.last || seq > v.purged.First {
			if v.last == 0 {
				return damage(path, "the first event is number %d, and %s does not say so: what was before is missing", seq, purgedName)
			}
			return damage(path, "event %d comes after event %d: what was between is missing", seq, v.last)
		}
		v.hole, v.first = true, seq
	}
	if v.first == 0 {
		v.first = seq
	}
	v.last = seq
	return nil
}

func (v *verifier) block(b block, newest bool) error {
	v.hole = false
	f, err := os.Open(b.path)
	if errors.Is(err, fs.ErrNotExist) { // purged meanwhile, or the next one shows the hole
		return nil
	}
	if err != nil {
		return fmt.Errorf("read block: %w", err)
	}
	v.buf.Reset()
	_, err = v.buf.ReadFrom(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("read block: %w", err)
	}
	r := newReader(v.stream, b.index, v.buf.Bytes())
	for off := 0; off < len(r.buf); {
		seq, length, ok := r.at(off)
		if !ok {
			return v.judge(b, r, off, newest)
		}
		if v.events && seq&tombstone == 0 {
			if err := v.follows(b.path, seq, off == 0); err != nil {
				return err
			}
		}
		off += length
	}
	if len(r.buf) == 0 && !newest {
		return damage(b.path, "the file is empty")
	}
	return nil
}

// judge tells a torn tail from damage.
func (v *verifier) judge(b block, r *reader, off int, newest bool) error {
	if next, found := r.behind(off); !newest || found && !hole(r.buf[off:next], off) {
		return damage(b.path, "at byte %d, behind event %d, is not what was written", off, v.last)
	}
	return nil
}

// closedName is the file that says how the blocks were left by a clean stop. A
// running queue has none, and so has a copy of one.
const closedName = "CLOSED"

// closed is its content.
type closed struct {
	Streams map[string][]blockMark `json:"streams"`
}

// blockMark tells a block from others and from its own past.
type blockMark struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
	End  string `json:"end"` // its last bytes, a checksum
}

func marks(dir string) (closed, error) {
	c := closed{Streams: map[string][]blockMark{}}
	for _, stream := range []string{streamEvents, streamParked} {
		blocks, err := blocksOf(dir, stream)
		if err != nil {
			return c, err
		}
		for _, b := range blocks {
			mark, err := ending(b.path)
			if err != nil {
				return c, err
			}
			c.Streams[stream] = append(c.Streams[stream], mark)
		}
	}
	return c, nil
}

// compareClosed compares the blocks with what the last stop left, if that was a
// clean one.
func compareClosed(dir string) error {
	path := filepath.Join(dir, closedName)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", closedName, err)
	}
	was, err := decodeClosed(b)
	if err != nil {
		return damage(path, "%v", err)
	}
	is, err := marks(dir)
	if err != nil {
		return err
	}
	for _, stream := range []string{streamEvents, streamParked} {
		for i, mark := range was.Streams[stream] {
			file := filepath.Join(streamDir(dir, stream), mark.Name)
			now := slices.IndexFunc(is.Streams[stream], func(m blockMark) bool { return m.Name == mark.Name })
			switch {
			case now < 0:
				return damage(file, "the file is missing")
			case now != i || is.Streams[stream][now] != mark:
				return damage(file, "it is not what the last stop left")
			}
		}
		if more := is.Streams[stream]; len(more) > len(was.Streams[stream]) {
			return damage(filepath.Join(streamDir(dir, stream), more[len(more)-1].Name), "the last stop left no such file")
		}
	}
	return nil
}

// dropConsumers removes what the server knows of the consumers. They are made
// anew at every start, from the claim store's progress. The server writes their
// state without a sync: what a power cut leaves of it would keep one of the same
// name from being made ("corrupt state file"), or make it go on where it was.
func dropConsumers(dir string) error {
	err := os.RemoveAll(filepath.Join(filepath.Dir(streamDir(dir, streamEvents)), "obs"))
	if err != nil && !errors.Is(err, syscall.ENOTDIR) {
		return fmt.Errorf("remove old consumers: %w", err)
	}
	return nil
}

// dropIndex removes what the server noted of its blocks: in a copy that may be of
// another instant than they are. It is made anew from them.
func dropIndex(dir string) error {
	for _, stream := range []string{streamEvents, streamParked} {
		err := os.Remove(filepath.Join(streamDir(dir, stream), "index.db"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
			return fmt.Errorf("remove the index of a copy: %w", err)
		}
	}
	return nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const closedHead = "idemd queue CLOSED version 1 crc32c "

func encodeClosed(c closed) ([]byte, error) {
	return seal(closedHead, closedName, c)
}

// seal gives the text of a file: a line with the checksum of the next one.
func seal(head, name string, content any) ([]byte, error) {
	body, err := json.Marshal(content)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", name, err)
	}
	return fmt.Appendf(nil, "%s%08x\n%s\n", head, crc32.Checksum(body, castagnoli), body), nil
}

// unseal reads what seal writes.
func unseal(head string, b []byte, content any) error {
	line, rest, _ := bytes.Cut(b, []byte("\n"))
	body, whole := bytes.CutSuffix(rest, []byte("\n"))
	if !whole || string(line) != fmt.Sprintf("%s%08x", head, crc32.Checksum(body, castagnoli)) {
		return errors.New("it does not hold what was written to it")
	}
	if err := json.Unmarshal(body, content); err != nil {
		return fmt.Errorf("it is not understood: %w", err)
	}
	return nil
}

func decodeClosed(b []byte) (closed, error) {
	var c closed
	return c, unseal(closedHead, b, &c)
}

// writeClosed notes how the stopped server has left its blocks.
func writeClosed(dir string) error {
	c, err := marks(dir)
	if err != nil {
		return err
	}
	b, err := encodeClosed(c)
	if err != nil {
		return err
	}
	if err := replace(dir, closedName, b); err != nil {
		return fmt.Errorf("write %s: %w", closedName, err)
	}
	return nil
}

// replace writes a file whose content is durable before it gets its name. That it
// has it is durable when the directory is.
func replace(dir, name string, content []byte) error {
	path := filepath.Join(dir, name)
	f, err := os.OpenFile(path+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o640)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(path+".tmp", path)
	}
	return err
}

// removeClosed returns when a power cut cannot bring CLOSED back: what is
// written from now on would not agree with it.
func removeClosed(dir *os.File) error {
	err := os.Remove(filepath.Join(dir.Name(), closedName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err = errors.Join(err, dir.Sync()); err != nil {
		return fmt.Errorf("remove %s: %w", closedName, err)
	}
	return nil
}

// Verify reads every record in the directory of a queue, open or not, and
// changes nothing. It returns an error that wraps ErrDamaged when one is not
// what was written.
func Verify(ctx context.Context, dir string) error {
	_, err := verify(ctx, Config{Dir: dir})
	return err
}
