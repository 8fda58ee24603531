package receiver

import (
	"fmt"
	"strings"
)

// template is what a signature is made over: parts of the request, and text
// between them. It can be taken apart in one way only, so that no byte can move
// from one part into another under the same signature.
type template struct {
	parts   []part
	notInID string // bytes that an id must not hold, for it could not be told from the rest
}

type part struct {
	kind partKind
	text string // of partText
}

type partKind uint8

const (
	partText partKind = iota
	partBody
	partTimestamp
	partID
)

// parseTemplate reads "{timestamp}.{body}" and the like, or says what is wrong.
func parseTemplate(text string) (t template, wrong string) {
	names := map[string]partKind{"body": partBody, "timestamp": partTimestamp, "id": partID}
	for text != "" {
		before, rest, open := strings.Cut(text, "{")
		if before != "" {
			t.parts = append(t.parts, part{text: before})
		}
		if !open {
			break
		}
		name, rest, closed := strings.Cut(rest, "}")
		kind, known := names[name]
		switch {
		case !closed:
			return template{}, "a { is not closed"
		case !known:
			return template{}, fmt.Sprintf("{%s} is not a part of a request; there are {body}, {timestamp} and {id}", name)
		case t.has(kind):
			return template{}, fmt.Sprintf("{%s} stands there twice", name)
		}
		t.parts = append(t.parts, part{kind: kind})
		text = rest
	}
	if !t.has(partBody) {
		return template{}, "has no {body}: what is not signed could be anybody's"
	}
	return t.separate()
}

// separate checks that parts are told from one another. A timestamp is digits;
// an id must do without the byte that ends it.
func (t template) separate() (template, string) {
	last := 0 // behind the last part that is no text
	for i, p := range t.parts {
		if p.kind == partText {
			continue
		}
		if last > 0 {
			if i == last {
				return template{}, "two parts stand side by side: a byte could move from one into the other"
			}
			sep := t.parts[i-1].text
			if isDigit(sep[0]) || isDigit(sep[len(sep)-1]) {
				return template{}, fmt.Sprintf("%q between two parts begins or ends with a digit, as a timestamp does", sep)
			}
			if t.parts[last-1].kind == partID {
				t.notInID += sep[:1]
			}
			if p.kind == partID {
				t.notInID += sep[len(sep)-1:]
			}
		}
		last = i + 1
	}
	return t, ""
}

func isDigit(b byte) bool { return b >= '0' && b <= '9' }

func (t template) has(kind partKind) bool {
	for _, p := range t.parts {
		if p.kind == kind {
			return true
		}
	}
	return false
}
