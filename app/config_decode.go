package app

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// tomlValue is a field type that reads itself: Duration, Size, Age, Secret. It
// returns what is wrong with the value, or nothing.
type tomlValue interface {
	fromTOML(n *node) (what, hint string)
}

// decoder moves a tree into Config, field by field, and notes where everything
// stood and what does not fit. Fields keep their defaults where a key is absent
// or wrong.
type decoder struct {
	places   map[string]int
	problems []Problem
	wrong    []string // paths that a problem was already reported for
}

// broken reports whether the value at path, or one inside it, was refused.
func (d *decoder) broken(path string) bool {
	return slices.ContainsFunc(d.wrong, func(w string) bool {
		rest, found := strings.CutPrefix(w, path)
		return found && (rest == "" || rest[0] == '.' || rest[0] == '[')
	})
}

func (d *decoder) problem(path string, line int, what, hint string) {
	d.wrong = append(d.wrong, path)
	d.problems = append(d.problems, Problem{Path: path, Line: line, What: what, Hint: hint})
}

// table fills the struct that into points to.
func (d *decoder) table(n *node, path string, into any) {
	v := reflect.ValueOf(into).Elem()
	fields := fieldsOf(v.Type())
	for _, name := range n.names {
		m, at := n.members[name], join(path, name)
		i := slices.Index(fields, name)
		if i < 0 || name == "" { // "" stands for a field that is no key
			d.problem(at, m.line, "is not a known key", suggest(name, fields))
			continue
		}
		d.places[at] = m.line
		d.value(m, at, v.Field(i))
	}
}

// fieldsOf gives the key of each field; "" for those that are not keys.
func fieldsOf(t reflect.Type) []string {
	names := make([]string, t.NumField())
	for i := range names {
		names[i] = t.Field(i).Tag.Get("toml")
	}
	return names
}

func (d *decoder) value(n *node, path string, v reflect.Value) {
	if own, ok := v.Addr().Interface().(tomlValue); ok {
		if what, hint := own.fromTOML(n); what != "" {
			d.problem(path, n.line, what, hint)
		}
		return
	}
	switch v.Kind() {
	case reflect.String:
		if d.is(n, kindText, path, `write it in quotes: "..."`) {
			v.SetString(n.text)
		}
	case reflect.Int:
		if d.is(n, kindInteger, path, "write a whole number without quotes") {
			d.integer(n, path, v)
		}
	case reflect.Bool:
		if d.is(n, kindBool, path, "write true or false without quotes") {
			v.SetBool(n.text == "true")
		}
	case reflect.Struct:
		if d.is(n, kindTable, path, fmt.Sprintf("write its keys below [%s]", path)) {
			d.table(n, path, v.Addr().Interface())
		}
	case reflect.Map:
		if d.is(n, kindTable, path, `write { NAME = "..." }`) {
			d.mapping(n, path, v)
		}
	case reflect.Slice:
		d.list(n, path, v)
	}
}

func (d *decoder) is(n *node, want nodeKind, path, hint string) bool {
	if n.kind == want {
		return true
	}
	d.problem(path, n.line, fmt.Sprintf("must be %s, not %s", want, n.kind), hint)
	return false
}

func (d *decoder) integer(n *node, path string, v reflect.Value) {
	i, err := strconv.ParseInt(n.text, 0, 32)
	if err != nil {
		d.problem(path, n.line, n.text+" is too large", "write a smaller whole number")
		return
	}
	v.SetInt(i)
}

func (d *decoder) mapping(n *node, path string, v reflect.Value) {
	m := reflect.MakeMap(v.Type())
	for _, name := range n.names {
		at := join(path, name)
		d.places[at] = n.members[name].line
		item := reflect.New(v.Type().Elem()).Elem()
		d.value(n.members[name], at, item)
		m.SetMapIndex(reflect.ValueOf(name), item)
	}
	v.Set(m)
}

func (d *decoder) list(n *node, path string, v reflect.Value) {
	hint := `write ["...", "..."]`
	if v.Type().Elem().Kind() == reflect.Struct {
		hint = fmt.Sprintf("write [[%s]] above its keys", path)
	}
	if !d.is(n, kindList, path, hint) {
		return
	}
	items := reflect.MakeSlice(v.Type(), len(n.items), len(n.items))
	for i, m := range n.items {
		at := fmt.Sprintf("%s[%d]", path, i)
		d.places[at] = m.line
		item := items.Index(i)
		if fresh, ok := item.Addr().Interface().(*HandlerConfig); ok {
			fresh.setDefaults()
		}
		d.value(m, at, item)
	}
	v.Set(items)
}

// join adds a key to a path. A key that is not a bare word is quoted.
func join(path, key string) string {
	bare := func(r rune) bool {
		return r == '_' || r == '-' || r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z'
	}
	if key == "" || strings.ContainsFunc(key, func(r rune) bool { return !bare(r) }) {
		key = strconv.Quote(key)
	}
	return strings.TrimPrefix(path+"."+key, ".")
}

// suggest says which key an unknown one may have been meant for.
func suggest(key string, known []string) string {
	known = slices.DeleteFunc(slices.Clone(known), func(k string) bool { return k == "" })
	if k := closest(key, known); k != "" {
		return fmt.Sprintf("did you mean %q?", k)
	}
	return "known here: " + strings.Join(known, ", ")
}

// suggestName says which name an unknown one may have been meant for. Unlike
// keys, names may be given twice or hold spaces where something is wrong.
func suggestName(name string, known []string) string {
	if k := closest(name, known); k != "" {
		return fmt.Sprintf("did you mean %q?", k)
	}
	var quoted []string
	for _, k := range known {
		if q := strconv.Quote(k); !slices.Contains(quoted, q) {
			quoted = append(quoted, q)
		}
	}
	if len(quoted) == 0 {
		return "there is none at all"
	}
	return "known here: " + strings.Join(quoted, ", ")
}

// closest gives the word that is nearly the same; "" when there is none.
func closest(word string, known []string) string {
	for _, k := range known {
		if k != "" && distance(word, k) <= 1+len(k)/5 {
			return k
		}
	}
	return ""
}

// distance counts the single-byte changes that make b of a (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
