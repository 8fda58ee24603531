package receiver

import (
	"encoding/json"

	"idemd/event"
)

// parseJSON reads one JSON value, which must be an object. Numbers keep their
// text: an id of 20 digits is not a float. A member that is there twice is
// kept twice. Half a character ("\ud800") is refused: it would make different
// ids equal. What it accepts, encoding/json calls valid (a fuzz test holds it
// to that).
func parseJSON(in []byte, lim limits) (*document, error) {
	p := jsonParser{in: in, lim: lim, doc: &document{nodes: make([]node, 1, min(lim.nodes/8, 64))}}
	p.skipBlanks()
	if p.peek() != '{' {
		return nil, malformed("parse JSON: not an object")
	}
	if err := p.value(0, 0); err != nil {
		return nil, err
	}
	p.skipBlanks()
	if p.pos != len(p.in) {
		return nil, malformed("parse JSON: more after the value")
	}
	return p.doc, nil
}

type jsonParser struct {
	in  []byte
	pos int
	lim limits
	doc *document
}

// value reads one value into node at.
func (p *jsonParser) value(at int32, depth int) error {
	if depth >= p.lim.depth {
		return malformed("parse JSON: too deep")
	}
	switch c := p.peek(); {
	case c == '{':
		return p.object(at, depth)
	case c == '[':
		// An array that is the value of no member: an array in an array.
		p.doc.nodes[at].kind = kindObject
		var last int32
		if err := p.array(at, &last, nil, depth); err != nil {
			return err
		}
		p.doc.linkTwins(at)
		return nil
	case c == '"':
		text, err := p.str()
		p.doc.nodes[at].text = text
		return err
	default:
		return p.literal(at)
	}
}

func (p *jsonParser) object(at int32, depth int) error {
	p.doc.nodes[at].kind = kindObject
	p.pos++
	var last int32
	for first := true; ; first = false {
		p.skipBlanks()
		if first && p.take('}') {
			return nil
		}
		name, err := p.str()
		if err != nil {
			return err
		}
		p.skipBlanks()
		if !p.take(':') {
			return malformed("parse JSON: member")
		}
		p.skipBlanks()
		if p.peek() == '[' {
			err = p.array(at, &last, name, depth)
		} else {
			err = p.member(at, &last, name, depth+1)
		}
		if err != nil {
			return err
		}
		p.skipBlanks()
		if p.take('}') {
			p.doc.linkTwins(at)
			return nil
		}
		if !p.take(',') {
			return malformed("parse JSON: object")
		}
	}
}

// array reads the items of an array as children of parent called name.
func (p *jsonParser) array(parent int32, last *int32, name []byte, depth int) error {
	p.pos++
	for first := true; ; first = false {
		p.skipBlanks()
		if first && p.take(']') {
			return nil
		}
		if err := p.member(parent, last, name, depth+1); err != nil {
			return err
		}
		p.skipBlanks()
		if p.take(']') {
			return nil
		}
		if !p.take(',') {
			return malformed("parse JSON: array")
		}
	}
}

// member reads a value as the next child of parent; last is the one before.
func (p *jsonParser) member(parent int32, last *int32, name []byte, depth int) error {
	nodes := &p.doc.nodes
	if len(*nodes) >= p.lim.nodes {
		return malformed("parse JSON: too many values")
	}
	at := int32(len(*nodes)) // #nosec G115 -- bounded by limits
	*nodes = append(*nodes, node{name: name})
	if *last == 0 {
		(*nodes)[parent].child = at
	} else {
		(*nodes)[*last].next = at
	}
	*last = at
	return p.value(at, depth)
}

// literal reads a number, true, false or null.
func (p *jsonParser) literal(at int32) error {
	from := p.pos
	for p.pos < len(p.in) && isLiteralByte(p.in[p.pos]) {
		p.pos++
	}
	text := p.in[from:p.pos]
	if !json.Valid(text) {
		return malformed("parse JSON: value")
	}
	p.doc.nodes[at].kind, p.doc.nodes[at].text = kindLiteral, text
	return nil
}

func isLiteralByte(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c == 'E' || c == '+' || c == '-' || c == '.'
}

// str reads a string and gives what it means.
func (p *jsonParser) str() ([]byte, error) {
	if p.peek() != '"' {
		return nil, malformed("parse JSON: string")
	}
	from, escaped := p.pos, false
	for p.pos++; p.pos < len(p.in); p.pos++ {
		switch c := p.in[p.pos]; {
		case c == '"':
			p.pos++
			if !escaped {
				return p.in[from+1 : p.pos-1], nil
			}
			var s string
			if err := json.Unmarshal(p.in[from:p.pos], &s); err != nil || event.HasLoneSurrogate(p.in[from:p.pos]) {
				return nil, malformed("parse JSON: string")
			}
			return []byte(s), nil
		case c == '\\':
			escaped = true
			p.pos++
		case c < 0x20:
			return nil, malformed("parse JSON: string")
		}
	}
	return nil, malformed("parse JSON: ends early")
}

func (p *jsonParser) peek() byte {
	if p.pos < len(p.in) {
		return p.in[p.pos]
	}
	return 0
}

func (p *jsonParser) take(c byte) bool {
	if p.peek() != c {
		return false
	}
	p.pos++
	return true
}

func (p *jsonParser) skipBlanks() {
	for p.pos < len(p.in) && isBlank(p.in[p.pos]) {
		p.pos++
	}
}

// appendJSON writes the document, which came from XML, as JSON:
//
//   - the root is dropped: its children are the members of the object;
//   - names are kept;
//   - every leaf is a string, an empty element is "";
//   - an element with children is an object;
//   - elements that repeatable names, and all others that repeat, are an array
//     at the place of the first one, also when there is one only;
//   - attributes and comments are dropped.
//
// It returns the paths that repeat without being declared, each once.
func (d *document) appendJSON(dst []byte, repeatable map[string]bool) ([]byte, []string) {
	w := jsonWriter{doc: d, repeatable: repeatable, out: dst, path: make([]byte, 0, 64)}
	if d.nodes[0].child == 0 {
		return append(dst, "{}"...), nil
	}
	w.object(0)
	return w.out, w.repeats
}

type jsonWriter struct {
	doc        *document
	repeatable map[string]bool // paths of names joined by dots
	out        []byte
	path       []byte
	repeats    []string
}

func (w *jsonWriter) object(parent int32) {
	w.out = append(w.out, '{')
	base, sep := len(w.path), false
	for i := w.doc.nodes[parent].child; i != 0; i = w.doc.nodes[i].next {
		n := &w.doc.nodes[i]
		if n.nth > 0 {
			continue // written with the first one
		}
		if sep {
			w.out = append(w.out, ',')
		}
		sep = true
		if base > 0 {
			w.path = append(w.path, '.')
		}
		w.path = append(w.path, n.name...)
		w.out = appendString(w.out, n.name)
		w.out = append(w.out, ':')
		w.member(i)
		w.path = w.path[:base]
	}
	w.out = append(w.out, '}')
}

// member writes i, or the array that i and its twins are.
func (w *jsonWriter) member(i int32) {
	declared := w.repeatable[string(w.path)]
	if !declared && w.doc.nodes[i].twin == 0 {
		w.value(i)
		return
	}
	if !declared && !contains(w.repeats, w.path) {
		w.repeats = append(w.repeats, string(w.path))
	}
	w.out = append(w.out, '[')
	for ; i != 0; i = w.doc.nodes[i].twin {
		w.value(i)
		if w.doc.nodes[i].twin != 0 {
			w.out = append(w.out, ',')
		}
	}
	w.out = append(w.out, ']')
}

func contains(list []string, b []byte) bool {
	for _, s := range list {
		if s == string(b) {
			return true
		}
	}
	return false
}

func (w *jsonWriter) value(i int32) {
	if w.doc.nodes[i].child != 0 {
		w.object(i)
		return
	}
	w.out = appendString(w.out, w.doc.nodes[i].text)
}

// appendString writes s, which is UTF-8, as a JSON string.
func appendString(dst, s []byte) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	from := 0
	for i, c := range s {
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, s[from:i]...)
		from = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	return append(append(dst, s[from:]...), '"')
}
