package receiver

import (
	"bytes"
	"crypto/sha256"
	"slices"

	"idemd/event"
)

// fingerprinter takes the fingerprint of XML payloads from the parsed document:
// the one that event.FingerprintRules takes from the JSON that the document
// becomes (a fuzz test holds it to that), without parsing a second time.
type fingerprinter struct {
	rules    [8]byte
	volatile map[string]bool
}

func newFingerprinter(volatile []string) fingerprinter {
	f := fingerprinter{
		rules:    event.NewFingerprintRules(volatile).Of(nil).Rules,
		volatile: make(map[string]bool, len(volatile)),
	}
	for _, path := range volatile {
		f.volatile[path] = true
	}
	return f
}

// of takes the fingerprint of a document that came from XML.
func (f fingerprinter) of(d *document, repeatable map[string]bool) event.Fingerprint {
	w := canonicalWriter{
		doc: d, repeatable: repeatable, volatile: f.volatile,
		out: make([]byte, 0, 2048), path: make([]byte, 0, 64), sorted: make([]int32, 0, len(d.nodes)),
	}
	w.object(0)
	return event.Fingerprint{Sum: sha256.Sum256(w.out), Rules: f.rules}
}

// canonicalWriter writes what event.FingerprintRules hashes: one letter for the
// type, lengths before contents, members sorted by name.
type canonicalWriter struct {
	doc        *document
	repeatable map[string]bool
	volatile   map[string]bool
	out        []byte
	path       []byte
	sorted     []int32 // a stack: the members of each open object
}

func (w *canonicalWriter) object(parent int32) {
	w.out = append(w.out, 'o')
	from := len(w.sorted)
	for i := w.doc.nodes[parent].child; i != 0; i = w.doc.nodes[i].next {
		if w.doc.nodes[i].nth == 0 {
			w.sorted = append(w.sorted, i)
		}
	}
	members := w.sorted[from:]
	slices.SortFunc(members, func(a, b int32) int {
		return bytes.Compare(w.doc.nodes[a].name, w.doc.nodes[b].name)
	})
	base := len(w.path)
	for _, i := range members {
		if base > 0 {
			w.path = append(w.path, '.')
		}
		w.path = append(w.path, w.doc.nodes[i].name...)
		if !w.volatile[string(w.path)] {
			w.out = appendBytes(append(w.out, 'm'), w.doc.nodes[i].name)
			w.member(i)
		}
		w.path = w.path[:base]
	}
	w.sorted = w.sorted[:from]
	w.out = append(w.out, 'e')
}

func (w *canonicalWriter) member(i int32) {
	if w.doc.nodes[i].twin == 0 && !w.repeatable[string(w.path)] {
		w.value(i)
		return
	}
	w.out = append(w.out, 'a')
	for ; i != 0; i = w.doc.nodes[i].twin {
		w.value(i)
	}
	w.out = append(w.out, 'e')
}

func (w *canonicalWriter) value(i int32) {
	if w.doc.nodes[i].child != 0 {
		w.object(i)
		return
	}
	w.out = appendBytes(append(w.out, 's'), w.doc.nodes[i].text)
}
