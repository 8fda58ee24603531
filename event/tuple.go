package event

import (
	"encoding/binary"
	"errors"
)

// ErrTuple is returned when bytes are not the encoding of a tuple.
var ErrTuple = errors.New("not a tuple encoding")

// AppendTuple appends the encoding of parts to dst: each part as a uvarint
// length and its bytes. The encoding is injective: two different lists never
// give the same bytes.
func AppendTuple(dst []byte, parts ...string) []byte {
	for _, p := range parts {
		dst = binary.AppendUvarint(dst, uint64(len(p)))
		dst = append(dst, p...)
	}
	return dst
}

// DecodeTuple is the inverse of AppendTuple. It returns ErrTuple for anything
// that AppendTuple does not write, lengths in a longer form than needed among
// them.
func DecodeTuple(b []byte) ([]string, error) {
	var parts []string
	for len(b) > 0 {
		n, size := binary.Uvarint(b)
		if size <= 0 || n > uint64(len(b)-size) || size != uvarintLen(n) {
			return nil, ErrTuple
		}
		parts = append(parts, string(b[size:size+int(n)]))
		b = b[size+int(n):]
	}
	return parts, nil
}

func uvarintLen(n uint64) int {
	size := 1
	for ; n >= 0x80; n >>= 7 {
		size++
	}
	return size
}
