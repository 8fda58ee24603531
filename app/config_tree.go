package app

import (
	"errors"
	"fmt"
	"sort"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// node is one value of a TOML document with the line on which its key stands.
// The usual decoder stops at the first value that does not fit its field and
// knows lines for some errors only; from this tree one pass finds everything.
type node struct {
	kind    nodeKind
	line    int
	text    string // the text of a string; other scalars as written
	names   []string
	members map[string]*node // kind table
	items   []*node          // kind list
}

type nodeKind uint8

const (
	kindTable nodeKind = iota + 1
	kindList
	kindText
	kindInteger
	kindFloat
	kindBool
	kindTime
)

// String names the kind for people.
func (k nodeKind) String() string {
	return [...]string{"", "a table", "a list", "a text", "a whole number", "a number with decimals", "true or false", "a date"}[k]
}

// parseTree reads a document. Problems are what the TOML language itself
// forbids. After a broken line the tree is nil; after a name that is there twice
// it is not, so that the rest is looked at as well.
func parseTree(data []byte) (*node, []Problem) {
	b := treeBuilder{lines: lineStarts(data), headers: map[*node]bool{}}
	b.parser.Reset(data)
	root := newTable(1)
	table := root
	for b.parser.NextExpression() {
		e := b.parser.Expression()
		switch e.Kind {
		case unstable.Table:
			table = b.header(root, e.Key(), false)
		case unstable.ArrayTable:
			table = b.header(root, e.Key(), true)
		case unstable.KeyValue:
			b.keyValue(table, e)
		}
	}
	if err := b.parser.Error(); err != nil {
		return nil, []Problem{b.broken(err)}
	}
	// The language has rules that the tree does not know, such as years with 13
	// months.
	var values map[string]any
	if err := toml.Unmarshal(data, &values); err != nil && len(b.problems) == 0 {
		p := Problem{What: strings.TrimPrefix(err.Error(), "toml: ")}
		var strict *toml.DecodeError
		if errors.As(err, &strict) {
			p.Line, _ = strict.Position()
		}
		return root, []Problem{p}
	}
	return root, b.problems
}

type treeBuilder struct {
	parser   unstable.Parser
	lines    []int          // offset of the beginning of each line
	headers  map[*node]bool // tables that had their own header line
	problems []Problem
}

func newTable(line int) *node {
	return &node{kind: kindTable, line: line, members: map[string]*node{}}
}

func lineStarts(data []byte) []int {
	starts := []int{0}
	for i, c := range data {
		if c == '\n' {
			starts = append(starts, i+1)
		}
	}
	return starts
}

func (b *treeBuilder) line(offset uint32) int {
	return sort.SearchInts(b.lines, int(offset)+1)
}

func (b *treeBuilder) broken(err error) Problem {
	p := Problem{What: err.Error(), Hint: "nothing after this line was read"}
	var perr *unstable.ParserError
	if errors.As(err, &perr) && len(perr.Highlight) > 0 {
		p.Line = b.line(b.parser.Range(perr.Highlight).Offset)
	}
	return p
}

// header walks to the table that a [table] or [[table]] line opens.
func (b *treeBuilder) header(root *node, key unstable.Iterator, array bool) *node {
	at, line := root, 0
	for key.Next() {
		k := key.Node()
		name := string(k.Data)
		line = b.line(k.Raw.Offset)
		if !array || !key.IsLast() {
			at = b.descend(at, name, line)
			continue
		}
		list := at.members[name]
		if list == nil || list.kind != kindList {
			list = b.set(at, name, &node{kind: kindList, line: line})
		}
		at = newTable(line)
		list.items = append(list.items, at)
	}
	if b.headers[at] {
		b.problems = append(b.problems, Problem{
			Line: line,
			What: fmt.Sprintf("this table is there twice, first on line %d", at.line),
			Hint: "write its keys under one header",
		})
	}
	b.headers[at] = true
	return at
}

// descend gives the table under name, the latest one of a list of tables.
func (b *treeBuilder) descend(at *node, name string, line int) *node {
	m := at.members[name]
	if m != nil && m.kind == kindList && len(m.items) > 0 {
		m = m.items[len(m.items)-1]
	}
	if m == nil || m.kind != kindTable {
		m = b.set(at, name, newTable(line))
	}
	return m
}

func (b *treeBuilder) set(at *node, name string, m *node) *node {
	if first := at.members[name]; first != nil {
		b.problems = append(b.problems, Problem{
			Line: m.line,
			What: fmt.Sprintf("%q is there twice, first on line %d", name, first.line),
			Hint: "remove one of the two",
		})
	} else {
		at.names = append(at.names, name)
	}
	at.members[name] = m
	return m
}

func (b *treeBuilder) keyValue(table *node, e *unstable.Node) {
	at := table
	for key := e.Key(); key.Next(); {
		k := key.Node()
		name, line := string(k.Data), b.line(k.Raw.Offset)
		if key.IsLast() {
			b.set(at, name, b.value(e.Value(), line))
			continue
		}
		at = b.descend(at, name, line)
	}
}

// value copies a value; line is used where the parser gives no place for it.
func (b *treeBuilder) value(v *unstable.Node, line int) *node {
	n := &node{line: line, text: string(v.Data)}
	if v.Raw.Length > 0 {
		n.line = b.line(v.Raw.Offset)
	}
	switch v.Kind {
	case unstable.String:
		n.kind = kindText
	case unstable.Integer:
		n.kind = kindInteger
	case unstable.Float:
		n.kind = kindFloat
	case unstable.Bool:
		n.kind = kindBool
	case unstable.Array:
		n.kind, n.line = kindList, line
		for it := v.Children(); it.Next(); {
			n.items = append(n.items, b.value(it.Node(), line))
		}
	case unstable.InlineTable:
		n.kind, n.line, n.members = kindTable, line, map[string]*node{}
		for it := v.Children(); it.Next(); {
			b.keyValue(n, it.Node())
		}
	default:
		n.kind = kindTime
	}
	return n
}
