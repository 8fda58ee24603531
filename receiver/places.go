package receiver

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/textproto"
	"strings"

	"idemd/event"
)

// Values of SourceConfig.IDScope: whether events of two types may have one id.
const (
	IDScopeType   = "type"   // ids are unique per type: the type is part of the identity
	IDScopeSource = "source" // ids are unique over all types
)

// places says where the requests of a generic scheme carry the event's id and
// type: in headers, or in members of the JSON that the body is. The body is the
// event, as it comes.
type places struct {
	idHeader    string
	idPath      string
	typeHeader  string
	typePath    string
	defaultType string
	typed       bool // the type is part of the identity
}

func newPlaces(c SourceConfig) places {
	return places{
		idHeader:    textproto.CanonicalMIMEHeaderKey(c.IDHeader),
		idPath:      c.IDPath,
		typeHeader:  textproto.CanonicalMIMEHeaderKey(c.TypeHeader),
		typePath:    c.TypePath,
		defaultType: cmp.Or(c.DefaultType, "event"),
		typed:       c.IDScope != IDScopeSource,
	}
}

// placeFields lists the settings of places, behind those of the scheme itself.
func placeFields(own ...string) []string {
	return append(own, "id_header", "id_path", "type_header", "type_path", "default_type", "id_scope")
}

func validatePlaces(c SourceConfig) []Problem {
	var ps []Problem
	add := func(field, what, hint string) { ps = append(ps, Problem{Field: field, What: what, Hint: hint}) }
	for _, h := range []struct{ field, value string }{
		{"header", c.Header}, {"id_header", c.IDHeader}, {"type_header", c.TypeHeader},
	} {
		if h.value != "" && !validHeader(h.value) {
			add(h.field, fmt.Sprintf("%q is not the name of a header", h.value), "use letters, digits and -")
		}
	}
	for _, p := range []struct{ field, value string }{{"id_path", c.IDPath}, {"type_path", c.TypePath}} {
		if p.value != "" && !validJSONPath(p.value) {
			add(p.field, fmt.Sprintf("%q is not a path", p.value), `write names joined by dots, such as "data.id"`)
		}
	}
	if c.IDHeader != "" && c.IDPath != "" {
		add("id_path", "is given beside id_header", "keep the one where the sender puts its event id")
	}
	if c.TypeHeader != "" && c.TypePath != "" {
		add("type_path", "is given beside type_header", "keep the one where the sender puts the type")
	}
	if c.DefaultType != "" && !validType(c.DefaultType) {
		add("default_type", fmt.Sprintf("%q cannot be a type", c.DefaultType), "use a word without blanks")
	}
	switch c.IDScope {
	case "", IDScopeType, IDScopeSource:
	default:
		add("id_scope", fmt.Sprintf("%q is not a scope", c.IDScope), `write "type" or "source"`)
	}
	return ps
}

func validHeader(name string) bool {
	return strings.IndexFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_'
	}) < 0
}

func validJSONPath(path string) bool {
	for name := range strings.SplitSeq(path, ".") {
		if name == "" {
			return false
		}
	}
	return true
}

// Identify takes id and type from where the source says. Without an id the
// event is unkeyed. A body that has to be parsed for them and cannot be is of
// event.TypeUnparsed.
func (l *places) Identify(p Payload) Identified {
	var doc *document
	if l.idPath != "" || l.typePath != "" {
		var err error
		if doc, err = parse(p.Body, payloadLimits()); err != nil || doc.nodes[0].name != nil {
			id := unparsed(p)
			id.Event.ContentType = cmp.Or(p.ContentType, id.Event.ContentType)
			return id
		}
	}
	typ := pick(p.Header, l.typeHeader, doc, l.typePath)
	if event.Missing(typ) {
		typ = l.defaultType
	}
	if !validType(typ) {
		typ = event.TypeUnparsed
	}
	scope := ""
	if l.typed {
		scope = typ
	}
	return Identified{Event: event.Event{
		Type:        typ,
		Identity:    event.NewIdentity(p.Tenant, event.KindPlatform, scope, pick(p.Header, l.idHeader, doc, l.idPath)),
		ContentType: contentType(p),
		Body:        p.Body,
	}}
}

// pick gives the value of a header or of the leaf at a JSON path, as written,
// or "" when there is none or more than one.
func pick(h http.Header, header string, doc *document, path string) string {
	if header != "" {
		if values := h[header]; len(values) == 1 {
			return values[0]
		}
		return ""
	}
	if path == "" {
		return ""
	}
	if i := doc.at(path); i != 0 {
		return string(doc.nodes[i].text)
	}
	return ""
}

func contentType(p Payload) string {
	switch {
	case p.ContentType != "":
		return p.ContentType
	case json.Valid(p.Body):
		return "application/json"
	}
	return "application/octet-stream"
}

// fill sets the headers in which id and type are expected.
func (l *places) fill(h http.Header, id string) {
	if l.idHeader != "" {
		h.Set(l.idHeader, id)
	}
	if l.typeHeader != "" {
		h.Set(l.typeHeader, l.defaultType)
	}
}

// Sample is a small JSON object with id and type where the source takes them from.
func (l *places) Sample(id string) []byte {
	root := map[string]any{"message": "hello"}
	put(root, l.typePath, l.defaultType)
	put(root, l.idPath, id)
	body, err := json.Marshal(root)
	if err != nil {
		return []byte("{}") // strings in maps always marshal
	}
	return body
}

// put sets the member at path, making the objects on the way.
func put(root map[string]any, path, value string) {
	if path == "" {
		return
	}
	names := strings.Split(path, ".")
	for _, name := range names[:len(names)-1] {
		sub, ok := root[name].(map[string]any)
		if !ok {
			sub = map[string]any{}
			root[name] = sub
		}
		root = sub
	}
	root[names[len(names)-1]] = value
}
