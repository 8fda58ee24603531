package receiver

import (
	"cmp"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"net/http"
	"net/textproto"
	"strings"
	"time"

	"idemd/event"
)

// Values of SourceConfig.IDScope: whether events of two types may have one id.
const (
	IDScopeType   = "type"   // ids are unique per type: the type is part of the identity
	IDScopeSource = "source" // ids are unique over all types
)

// token is the scheme of senders that share a secret with us and send it with
// every request. The body is the event, as it comes.
type token struct {
	path        string
	tokens      []string
	digests     [][sha256.Size]byte // of tokens
	header      string              // canonical; "": Authorization: Bearer
	idHeader    string
	idPath      string
	typeHeader  string
	typePath    string
	defaultType string
	typed       bool // the type is part of the identity
}

var _ Scheme = (*token)(nil)

func validateToken(c SourceConfig) []Problem {
	ps := unused("token", map[string]bool{
		"encoding_aes_key": len(c.EncodingAESKey) > 0, "receive_ids": len(c.ReceiveIDs) > 0,
		"endpoint": c.Endpoint != "", "reply": c.Reply != "", "max_age": c.MaxAge != 0,
	})
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

func newToken(c SourceConfig) (Scheme, []Problem) {
	t := &token{
		path:        c.EffectivePath(),
		tokens:      c.Token,
		header:      textproto.CanonicalMIMEHeaderKey(c.Header),
		idHeader:    textproto.CanonicalMIMEHeaderKey(c.IDHeader),
		idPath:      c.IDPath,
		typeHeader:  textproto.CanonicalMIMEHeaderKey(c.TypeHeader),
		typePath:    c.TypePath,
		defaultType: cmp.Or(c.DefaultType, "event"),
		typed:       c.IDScope != IDScopeSource,
	}
	if t.header == "Authorization" {
		t.header = ""
	}
	for _, secret := range c.Token {
		t.digests = append(t.digests, sha256.Sum256([]byte(secret)))
	}
	return t, validateTokens(c.Token)
}

// Open compares the token and identifies the event.
func (t *token) Open(req *Request, _ time.Time) (Opened, error) {
	index, err := t.authenticate(req.Header)
	if err != nil {
		return Opened{}, err
	}
	id := t.Identify(Payload{Body: req.Body, ContentType: req.Header.Get("Content-Type"), Header: req.Header})
	return Opened{Identified: id, SecretIndex: index}, nil
}

// authenticate gives the index of the token that a request shows. Digests are
// compared, so that time tells neither contents nor length.
func (t *token) authenticate(h http.Header) (int, error) {
	values := h[cmp.Or(t.header, "Authorization")]
	if len(values) != 1 {
		return 0, unauthentic("check token: not exactly one header")
	}
	secret := values[0]
	if t.header == "" {
		scheme, rest, _ := strings.Cut(secret, " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return 0, unauthentic("check token: no bearer token")
		}
		secret = strings.TrimSpace(rest)
	}
	got, index := sha256.Sum256([]byte(secret)), -1
	for i := range t.digests {
		if subtle.ConstantTimeCompare(got[:], t.digests[i][:]) == 1 {
			index = i
		}
	}
	if index < 0 {
		return 0, unauthentic("check token")
	}
	return index, nil
}

// Identify takes id and type from where the source says. Without an id the
// event is unkeyed. A body that has to be parsed for them and cannot be is of
// event.TypeUnparsed.
func (t *token) Identify(p Payload) Identified {
	var doc *document
	if t.idPath != "" || t.typePath != "" {
		var err error
		if doc, err = parse(p.Body, payloadLimits()); err != nil || doc.nodes[0].name != nil {
			id := unparsed(p)
			id.Event.ContentType = cmp.Or(p.ContentType, id.Event.ContentType)
			return id
		}
	}
	typ := pick(p.Header, t.typeHeader, doc, t.typePath)
	if event.Missing(typ) {
		typ = t.defaultType
	}
	if !validType(typ) {
		typ = event.TypeUnparsed
	}
	scope := ""
	if t.typed {
		scope = typ
	}
	return Identified{Event: event.Event{
		Type:        typ,
		Identity:    event.NewIdentity(p.Tenant, event.KindPlatform, scope, pick(p.Header, t.idHeader, doc, t.idPath)),
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

// Sign adds the token, and the id if the source takes it from a header.
func (t *token) Sign(payload []byte, id string, _ time.Time) (Signed, error) {
	h := http.Header{"Content-Type": {"application/json"}}
	if t.header == "" {
		h.Set("Authorization", "Bearer "+t.tokens[0])
	} else {
		h.Set(t.header, t.tokens[0])
	}
	if t.idHeader != "" {
		h.Set(t.idHeader, id)
	}
	if t.typeHeader != "" {
		h.Set(t.typeHeader, t.defaultType)
	}
	return Signed{Path: t.path, Header: h, Body: payload}, nil
}

// Sample is a small JSON object with id and type where the source takes them from.
func (t *token) Sample(id string) []byte {
	root := map[string]any{"message": "hello"}
	put(root, t.typePath, t.defaultType)
	put(root, t.idPath, id)
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
