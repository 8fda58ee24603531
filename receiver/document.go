package receiver

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strings"
	"unicode/utf8"
)

// document is a parsed payload. XML and JSON have one shape here: an element
// or member is a node, elements or array items that repeat are siblings with
// one name. So one piece of code finds the identity in either.
//
// Names and texts are mostly pieces of the input, which must not change while
// the document is in use.
type document struct {
	nodes []node // nodes[0] is the root
}

type node struct {
	name  []byte
	text  []byte // of a leaf
	child int32  // first child; 0 when there is none, since the root is nobody's child
	next  int32  // next sibling; 0 when there is none
	twin  int32  // next sibling with the same name; 0 when there is none
	nth   int32  // how many earlier siblings have the same name
	kind  nodeKind
}

// nodeKind tells what a node was written as. XML has only strings and objects.
type nodeKind uint8

const (
	kindString  nodeKind = iota
	kindLiteral          // a number, true, false or null, text as written
	kindObject           // has children, or is an empty {}
)

// limits bound what a parser accepts, so that a request that nobody has
// authenticated yet cannot make it work for long.
type limits struct {
	depth int
	nodes int
}

// The limits. An envelope has three members; the largest payload known lists
// the 2,000 members of a chat.
const (
	envelopeDepth = 8
	envelopeNodes = 64
	payloadDepth  = 48
	payloadNodes  = 50_000
)

func envelopeLimits() limits { return limits{depth: envelopeDepth, nodes: envelopeNodes} }
func payloadLimits() limits  { return limits{depth: payloadDepth, nodes: payloadNodes} }

// parse reads XML or JSON, whichever the first byte that is not blank says. It
// returns an error that wraps ErrMalformed for everything else.
func parse(in []byte, lim limits) (*document, error) {
	in = trimBOM(in)
	if !utf8.Valid(in) {
		return nil, malformed("parse payload: not UTF-8")
	}
	switch start := trimBlanks(in); {
	case len(start) == 0:
		return nil, malformed("parse payload: empty")
	case start[0] == '<':
		return parseXML(in, lim)
	default:
		return parseJSON(in, lim)
	}
}

func isBlank(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }

func trimBlanks(s []byte) []byte {
	for len(s) > 0 && isBlank(s[0]) {
		s = s[1:]
	}
	for len(s) > 0 && isBlank(s[len(s)-1]) {
		s = s[:len(s)-1]
	}
	return s
}

// trimBOM takes the byte order mark off, which is no content.
func trimBOM(in []byte) []byte { return bytes.TrimPrefix(in, []byte("\xef\xbb\xbf")) }

// linkTwins joins the children of parent that have one name. Small families
// are compared, large ones hashed, so that the cost stays linear.
func (d *document) linkTwins(parent int32) {
	count := 0
	for i := d.nodes[parent].child; i != 0; i = d.nodes[i].next {
		count++
	}
	if count < 2 {
		return
	}
	if count > 24 {
		d.linkManyTwins(parent)
		return
	}
	for i := d.nodes[parent].child; i != 0; i = d.nodes[i].next {
		for j := d.nodes[i].next; j != 0; j = d.nodes[j].next {
			if bytes.Equal(d.nodes[i].name, d.nodes[j].name) {
				d.nodes[i].twin, d.nodes[j].nth = j, d.nodes[i].nth+1
				break
			}
		}
	}
}

func (d *document) linkManyTwins(parent int32) {
	last := make(map[string]int32)
	for i := d.nodes[parent].child; i != 0; i = d.nodes[i].next {
		if j, ok := last[string(d.nodes[i].name)]; ok {
			d.nodes[j].twin, d.nodes[i].nth = i, d.nodes[j].nth+1
		}
		last[string(d.nodes[i].name)] = i
	}
}

// find gives the first child of parent called name, or 0.
func (d *document) find(parent int32, name string) int32 {
	for i := d.nodes[parent].child; i != 0; i = d.nodes[i].next {
		if string(d.nodes[i].name) == name {
			return i
		}
	}
	return 0
}

// at gives the leaf at a path of names joined by dots, or 0. What is there
// twice, at any step, says nothing: two readers could take two values.
func (d *document) at(path string) int32 {
	var at int32
	for rest, more := path, true; more; {
		var name string
		name, rest, more = strings.Cut(rest, ".")
		if at = d.find(at, name); at == 0 || d.nodes[at].twin != 0 {
			return 0
		}
	}
	if d.nodes[at].child != 0 {
		return 0
	}
	return at
}

// field gives the text of the leaf at path without blanks around it, or "".
func (d *document) field(path string) string {
	if i := d.at(path); i != 0 {
		return string(d.trimmed(i))
	}
	return ""
}

func (d *document) trimmed(i int32) []byte { return trimBlanks(d.nodes[i].text) }

// digest is the hex SHA-256 over the sorted, length-prefixed pairs of path and
// trimmed value of all leaves, without the members of the root called one of
// skip. A path counts its repeats (the second Item of a list is another path
// than the first), so that values cannot change places unseen; the order of
// members with different names does not count.
func (d *document) digest(skip ...string) string {
	w := leafWriter{doc: d, buf: make([]byte, 0, 2048), pairs: make([]span, 0, len(d.nodes))}
	path := make([]byte, 0, 128)
	for i := d.nodes[0].child; i != 0; i = d.nodes[i].next {
		if !slices.Contains(skip, string(d.nodes[i].name)) {
			w.walk(i, path)
		}
	}
	slices.SortFunc(w.pairs, func(a, b span) int {
		return bytes.Compare(w.buf[a.from:a.to], w.buf[b.from:b.to])
	})
	h := sha256.New()
	for _, p := range w.pairs {
		h.Write(w.buf[p.from:p.to])
	}
	return hex.EncodeToString(h.Sum(nil))
}

type span struct{ from, to int }

type leafWriter struct {
	doc   *document
	buf   []byte
	pairs []span
}

// walk writes the leaves of i, whose parent has the given path.
func (w *leafWriter) walk(i int32, path []byte) {
	n := &w.doc.nodes[i]
	path = appendBytes(path, n.name)
	path = binary.AppendUvarint(path, uint64(n.nth))
	if n.child == 0 {
		from := len(w.buf)
		w.buf = appendBytes(w.buf, path)
		w.buf = appendBytes(w.buf, w.doc.trimmed(i))
		w.pairs = append(w.pairs, span{from, len(w.buf)})
		return
	}
	for c := n.child; c != 0; c = w.doc.nodes[c].next {
		w.walk(c, path)
	}
}

// appendBytes is event.AppendTuple for one part of bytes.
func appendBytes(dst, part []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(part)))
	return append(dst, part...)
}
