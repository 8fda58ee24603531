package receiver

import (
	"bytes"
	"strconv"
	"unicode/utf8"
)

// parseXML reads the XML that callbacks are made of: elements, text, CDATA,
// the five predefined entities and character references. A document type
// declaration, other entities, processing instructions, an encoding other than
// UTF-8 and text beside elements are refused. Attributes are checked and
// dropped. What it accepts, encoding/xml reads the same (a fuzz test holds it
// to that); it is here because it takes a twentieth of the time and because
// encoding/xml lets document type declarations pass.
func parseXML(in []byte, lim limits) (*document, error) {
	p := xmlParser{in: in, lim: lim, doc: &document{nodes: make([]node, 0, min(lim.nodes/8, 64))}, open: make([]xmlElement, 0, 8)}
	if err := p.run(); err != nil {
		return nil, err
	}
	return p.doc, nil
}

type xmlParser struct {
	in   []byte
	pos  int
	lim  limits
	doc  *document
	open []xmlElement // from the root to the innermost
}

// xmlElement is an element whose end has not been read yet.
type xmlElement struct {
	node  int32
	last  int32  // its last child so far
	text  []byte // its text so far
	owned bool   // text is a copy of our own, so it may grow
	solid bool   // text is more than blanks outside CDATA
	cdata bool   // a CDATA section was read
}

func (p *xmlParser) run() error {
	if err := p.declaration(); err != nil {
		return err
	}
	for p.pos < len(p.in) {
		var err error
		switch rest := p.in[p.pos:]; {
		case rest[0] != '<':
			err = p.text()
		case bytes.HasPrefix(rest, []byte("</")):
			err = p.endTag()
		case bytes.HasPrefix(rest, []byte("<![CDATA[")):
			err = p.cdata()
		case bytes.HasPrefix(rest, []byte("<!--")):
			err = p.comment()
		case bytes.HasPrefix(rest, []byte("<!")), bytes.HasPrefix(rest, []byte("<?")):
			err = malformed("parse XML: declaration or instruction")
		default:
			err = p.startTag()
		}
		if err != nil {
			return err
		}
	}
	if len(p.open) != 0 || len(p.doc.nodes) == 0 {
		return malformed("parse XML: ends early")
	}
	return nil
}

// declaration reads <?xml ...?>, which may stand at the very beginning.
func (p *xmlParser) declaration() error {
	if !bytes.HasPrefix(p.in, []byte("<?xml")) {
		return nil
	}
	p.pos = len("<?xml")
	for n := 0; ; n++ {
		spaced := p.skipBlanks()
		if bytes.HasPrefix(p.in[p.pos:], []byte("?>")) && n > 0 {
			p.pos += 2
			return nil
		}
		name, value, err := p.attribute()
		if err != nil || !spaced {
			return malformed("parse XML: declaration")
		}
		switch {
		case string(name) == "version" && string(value) == "1.0" && n == 0:
		case string(name) == "encoding" && bytes.EqualFold(value, []byte("utf-8")) && n == 1:
		case string(name) == "standalone" && n > 0:
		default:
			return malformed("parse XML: declaration or encoding")
		}
	}
}

func (p *xmlParser) startTag() error {
	p.pos++
	name := p.name()
	if name == nil {
		return malformed("parse XML: element name")
	}
	selfClosing := false
	for {
		spaced := p.skipBlanks()
		rest := p.in[p.pos:]
		if bytes.HasPrefix(rest, []byte(">")) {
			p.pos++
			break
		}
		if bytes.HasPrefix(rest, []byte("/>")) {
			p.pos += 2
			selfClosing = true
			break
		}
		if _, _, err := p.attribute(); err != nil || !spaced {
			return malformed("parse XML: attribute")
		}
	}
	if err := p.begin(name); err != nil {
		return err
	}
	if selfClosing {
		p.end()
	}
	return nil
}

func (p *xmlParser) begin(name []byte) error {
	nodes := &p.doc.nodes
	at := int32(len(*nodes)) // #nosec G115 -- bounded by limits
	switch {
	case len(p.open) == 0 && at != 0:
		return malformed("parse XML: more than one root")
	case len(p.open) == p.lim.depth || len(*nodes) == p.lim.nodes:
		return malformed("parse XML: too deep or too many elements")
	}
	if len(p.open) > 0 {
		parent := &p.open[len(p.open)-1]
		if parent.solid {
			return malformed("parse XML: text beside elements")
		}
		if parent.last == 0 {
			(*nodes)[parent.node].child = at
			(*nodes)[parent.node].kind = kindObject
		} else {
			(*nodes)[parent.last].next = at
		}
		parent.last = at
	}
	*nodes = append(*nodes, node{name: name})
	p.open = append(p.open, xmlElement{node: at})
	return nil
}

func (p *xmlParser) endTag() error {
	p.pos += 2
	name := p.name()
	p.skipBlanks()
	if len(p.open) == 0 || !bytes.HasPrefix(p.in[p.pos:], []byte(">")) ||
		!bytes.Equal(name, p.doc.nodes[p.open[len(p.open)-1].node].name) {
		return malformed("parse XML: end tag")
	}
	p.pos++
	p.end()
	return nil
}

// end closes the innermost element.
func (p *xmlParser) end() {
	e := &p.open[len(p.open)-1]
	if e.last == 0 {
		p.doc.nodes[e.node].text = e.text
	} else {
		p.doc.linkTwins(e.node)
	}
	p.open = p.open[:len(p.open)-1]
}

func (p *xmlParser) text() error {
	end := bytes.IndexByte(p.in[p.pos:], '<')
	if end < 0 {
		end = len(p.in) - p.pos
	}
	run := p.in[p.pos : p.pos+end]
	p.pos += end
	blank := len(trimBlanks(run)) == 0
	if len(p.open) == 0 {
		if !blank {
			return malformed("parse XML: text outside the root")
		}
		return nil
	}
	e := &p.open[len(p.open)-1]
	if blank {
		// Blanks beside CDATA or elements are layout, alone they are the text.
		if !e.cdata && e.last == 0 {
			e.add(newlines(run))
		}
		return nil
	}
	if e.last != 0 {
		return malformed("parse XML: text beside elements")
	}
	if bytes.Contains(run, []byte("]]>")) || !legal(run) {
		return malformed("parse XML: illegal text")
	}
	run, err := unescape(newlines(run))
	if err != nil {
		return err
	}
	e.solid = true
	e.add(run)
	return nil
}

func (p *xmlParser) cdata() error {
	p.pos += len("<![CDATA[")
	end := bytes.Index(p.in[p.pos:], []byte("]]>"))
	if end < 0 || len(p.open) == 0 {
		return malformed("parse XML: CDATA section")
	}
	run := p.in[p.pos : p.pos+end]
	p.pos += end + len("]]>")
	e := &p.open[len(p.open)-1]
	if e.last != 0 || !legal(run) {
		return malformed("parse XML: illegal CDATA section")
	}
	if !e.solid {
		e.text, e.owned = nil, false // blanks before it
	}
	e.solid, e.cdata = true, true
	e.add(newlines(run))
	return nil
}

// add joins a piece of text to what the element has. It copies each byte a
// bounded number of times, however many pieces there are.
func (e *xmlElement) add(piece []byte) {
	switch {
	case len(e.text) == 0:
		e.text, e.owned = piece, false
	case e.owned:
		e.text = append(e.text, piece...)
	default:
		e.text = append(bytes.Clone(e.text), piece...)
		e.owned = true
	}
}

func (p *xmlParser) comment() error {
	p.pos += len("<!--")
	end := bytes.Index(p.in[p.pos:], []byte("--"))
	if end < 0 || !bytes.HasPrefix(p.in[p.pos+end:], []byte("-->")) || !legal(p.in[p.pos:p.pos+end]) {
		return malformed("parse XML: comment")
	}
	p.pos += end + len("-->")
	return nil
}

func (p *xmlParser) attribute() (name, value []byte, err error) {
	name = p.name()
	p.skipBlanks()
	if name == nil || !bytes.HasPrefix(p.in[p.pos:], []byte("=")) {
		return nil, nil, malformed("parse XML: attribute")
	}
	p.pos++
	p.skipBlanks()
	rest := p.in[p.pos:]
	if len(rest) == 0 || (rest[0] != '"' && rest[0] != '\'') {
		return nil, nil, malformed("parse XML: attribute")
	}
	end := bytes.IndexByte(rest[1:], rest[0])
	if end < 0 {
		return nil, nil, malformed("parse XML: attribute")
	}
	value = rest[1 : 1+end]
	p.pos += end + 2
	if bytes.IndexByte(value, '<') >= 0 || !legal(value) {
		return nil, nil, malformed("parse XML: attribute")
	}
	if _, err := unescape(value); err != nil {
		return nil, nil, err
	}
	return name, value, nil
}

func (p *xmlParser) skipBlanks() (found bool) {
	for p.pos < len(p.in) && isBlank(p.in[p.pos]) {
		p.pos++
		found = true
	}
	return found
}

// name reads a name of ASCII letters, digits, '_', '-' and '.', the names that
// callbacks use. It returns nil when there is none.
func (p *xmlParser) name() []byte {
	from := p.pos
	for p.pos < len(p.in) && isNameByte(p.in[p.pos], p.pos > from) {
		p.pos++
	}
	if p.pos == from {
		return nil
	}
	return p.in[from:p.pos]
}

func isNameByte(c byte, inside bool) bool {
	switch {
	case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c == '_':
		return true
	case c >= '0' && c <= '9', c == '-', c == '.':
		return inside
	}
	return false
}

// legal reports whether s, which is UTF-8, has only characters that XML knows.
func legal(s []byte) bool {
	for i, c := range s {
		switch {
		case c == 0xef: // U+FFFE and U+FFFF are none
			if s[i+1] == 0xbf && s[i+2] >= 0xbe {
				return false
			}
		case c < 0x20 && !isBlank(c):
			return false
		}
	}
	return true
}

// newlines turns CR LF and CR into LF, as XML demands.
func newlines(s []byte) []byte {
	if bytes.IndexByte(s, '\r') < 0 {
		return s
	}
	s = bytes.ReplaceAll(s, []byte("\r\n"), []byte("\n"))
	return bytes.ReplaceAll(s, []byte("\r"), []byte("\n"))
}

// unescape resolves the predefined entities and character references.
func unescape(s []byte) ([]byte, error) {
	at := bytes.IndexByte(s, '&')
	if at < 0 {
		return s, nil
	}
	out := make([]byte, 0, len(s))
	for at >= 0 {
		out = append(out, s[:at]...)
		s = s[at+1:]
		end := bytes.IndexByte(s[:min(len(s), 12)], ';')
		if end < 0 {
			return nil, malformed("parse XML: entity")
		}
		r, ok := entity(string(s[:end]))
		if !ok {
			return nil, malformed("parse XML: entity")
		}
		out = utf8.AppendRune(out, r)
		s = s[end+1:]
		at = bytes.IndexByte(s, '&')
	}
	return append(out, s...), nil
}

func entity(name string) (rune, bool) {
	switch name {
	case "lt":
		return '<', true
	case "gt":
		return '>', true
	case "amp":
		return '&', true
	case "quot":
		return '"', true
	case "apos":
		return '\'', true
	}
	if len(name) < 2 || name[0] != '#' {
		return 0, false
	}
	digits, base := name[1:], 10
	if digits[0] == 'x' {
		digits, base = digits[1:], 16
	}
	n, err := strconv.ParseUint(digits, base, 21)
	if err != nil || !utf8.ValidRune(rune(n)) || !legal(utf8.AppendRune(nil, rune(n))) {
		return 0, false
	}
	return rune(n), true
}
