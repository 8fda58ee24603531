package boltstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"unsafe"

	"github.com/FastFilter/xorfilter"
	"golang.org/x/sys/unix"

	"idemd/event"
)

// A table's static filter, as it stands in the table:
//
//	magic 4 | segment length 4 | segments' total length 4 | zero 4 | seed 8 | fingerprints, 2 each
//
// It is a binary fuse filter. The library makes it; asking it is done here, where
// it stands in the mapped file: the algorithm is part of our format then, and a
// library that changes its own cannot make old files deny their keys.
const (
	filterMagic = "idf1"
	filterHead  = 24
)

var errFilter = errors.New("not a filter")

// filter says of a key that it is not in a table, or that it may be (also of 1.5
// in 100,000 that are not).
type filter struct {
	seed   uint64
	length uint32 // of a segment, a power of two
	total  uint32 // of all segments but the last two
	prints []byte
}

// filterKey is what a filter knows of a hash.
func filterKey(h event.Hash) uint64 { return binary.BigEndian.Uint64(h[:]) }

// makeFilter gives the filter of keys, of which there is at least one, and asks it
// for each of them.
func makeFilter(keys []uint64) ([]byte, error) {
	made, err := xorfilter.NewBinaryFuse[uint16](keys)
	if err != nil {
		return nil, fmt.Errorf("make filter: %w", err)
	}
	b := make([]byte, filterHead, filterHead+2*len(made.Fingerprints))
	copy(b, filterMagic)
	binary.LittleEndian.PutUint32(b[4:], made.SegmentLength)
	binary.LittleEndian.PutUint32(b[8:], made.SegmentCountLength)
	binary.LittleEndian.PutUint64(b[16:], made.Seed)
	for _, p := range made.Fingerprints {
		b = binary.LittleEndian.AppendUint16(b, p)
	}
	f, err := parseFilter(b)
	if err != nil {
		return nil, fmt.Errorf("make filter: %w", err)
	}
	for _, k := range keys {
		if !f.has(k) {
			return nil, errors.New("make filter: it denies one of its keys")
		}
	}
	return b, nil
}

// parseFilter reads what makeFilter made, without copying it.
func parseFilter(b []byte) (filter, error) {
	if len(b) < filterHead || string(b[:4]) != filterMagic {
		return filter{}, errFilter
	}
	f := filter{
		length: binary.LittleEndian.Uint32(b[4:]), total: binary.LittleEndian.Uint32(b[8:]),
		seed: binary.LittleEndian.Uint64(b[16:]), prints: b[filterHead:],
	}
	if bits.OnesCount32(f.length) != 1 || f.total == 0 || f.total%f.length != 0 || // whole segments, or has reads beyond them
		uint64(len(f.prints)) != 2*(uint64(f.total)+2*uint64(f.length)) {
		return filter{}, errFilter
	}
	return f, nil
}

// has reports whether the key may be there.
func (f *filter) has(key uint64) bool {
	h := key + f.seed
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	h ^= h >> 33
	hi, _ := bits.Mul64(h, uint64(f.total))
	h0, mask := uint32(hi), f.length-1
	h1 := (h0 + f.length) ^ uint32(h>>18)&mask
	h2 := (h0 + 2*f.length) ^ uint32(h)&mask
	return f.print(h0)^f.print(h1)^f.print(h2) == uint16(h^h>>32)
}

func (f *filter) print(i uint32) uint16 { return binary.LittleEndian.Uint16(f.prints[2*uint64(i):]) }

// warm asks the system to read b, a part of a mapped file, all at once: it is
// asked for in random order later, and then page by page. It is advice, and
// nothing is lost where it is not taken.
func warm(b []byte) {
	page := os.Getpagesize()
	skip := (page - int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))%uintptr(page))) % page
	if skip >= len(b) {
		return
	}
	if err := unix.Madvise(b[skip:], unix.MADV_WILLNEED); err != nil {
		return
	}
}
