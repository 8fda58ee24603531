package app

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// The schemes that sources may have.
const (
	schemeWeCom = "wecom"
	schemeToken = "token"
)

func (v *validation) sources() {
	if len(v.c.Sources) == 0 {
		v.add("source", "there is no source: nobody could call", "write one [[source]]; idemd init writes an example")
	}
	names, paths := map[string]string{}, map[string]string{}
	for i := range v.c.Sources {
		table := fmt.Sprintf("source[%d]", i+1)
		s := &v.c.Sources[i]
		v.names(table, s.Name, s.ID, names)
		v.path(table, s, paths)
		v.optional(table+".on_refuse", s.OnRefuse, "status", "hold")
		if v.c.has(table + ".max_body") {
			v.body(table+".max_body", s.MaxBody)
		}
		for j, p := range s.Volatile {
			if slices.Contains(strings.Split(p, "."), "") {
				v.add(fmt.Sprintf("%s.volatile[%d]", table, j+1), fmt.Sprintf("%q is not a path", p), `write names joined by dots: "order.updated_at"`)
			}
		}
		v.secret(table+".token", s.Token)
		v.secret(table+".previous_token", s.PreviousToken)
		v.secret(table+".encoding_aes_key", s.EncodingAESKey)
		v.secret(table+".previous_encoding_aes_key", s.PreviousEncodingAESKey)
		v.oneOf(table+".scheme", s.Scheme, schemeWeCom, schemeToken)
		switch s.Scheme {
		case schemeWeCom:
			v.wecom(table, s)
		case schemeToken:
			v.token(table, s)
		}
	}
}

func (v *validation) path(table string, s *SourceConfig, seen map[string]string) {
	at, p := table+".path", s.Path
	switch {
	case p == "" && !v.c.has(at):
		if p, at = "/in/"+s.Name, table+".name"; v.twice(s.Name) {
			return
		}
	case !strings.HasPrefix(p, "/") || path.Clean(p) != p || strings.ContainsAny(p, "?#{} %"):
		v.add(at, fmt.Sprintf("%q is not a plain path", p), `write "/in/`+s.Name+`", or the path that the platform calls already`)
		return
	case p == "/" || p == "/healthz" || p == "/readyz":
		v.add(at, fmt.Sprintf("%q is idemd's own", p), `write "/in/`+s.Name+`"`)
		return
	}
	if first, taken := seen[p]; taken {
		v.add(at, fmt.Sprintf("%q is the path of %s, too", p, v.c.label(first)), "give each source its own path")
		return
	}
	seen[p] = table
}

// twice reports whether more than one source has this name.
func (v *validation) twice(name string) bool {
	n := 0
	for i := range v.c.Sources {
		if v.c.Sources[i].Name == name {
			n++
		}
	}
	return n > 1
}

func (v *validation) required(table, key string, missing bool, hint string) {
	at := table + "." + key
	switch {
	case !missing:
	case v.c.has(at):
		v.add(at, "is empty", hint)
	default:
		v.add(at, "is missing", hint)
	}
}

func (v *validation) wecom(table string, s *SourceConfig) {
	v.required(table, "token", s.Token.IsZero(), secretHint)
	v.required(table, "encoding_aes_key", s.EncodingAESKey.IsZero(), secretHint)
	v.required(table, "receive_ids", len(s.ReceiveIDs) == 0,
		`write the corp id, ["ww0000000000000000"]; [""] where the platform sends none`)
	if s.PreviousToken.IsZero() != s.PreviousEncodingAESKey.IsZero() {
		v.add(table+".previous_token", "stands alone: token and key are one pair", "write previous_token and previous_encoding_aes_key, both or none")
	}
	v.optional(table+".endpoint", s.Endpoint, "app", "suite", "bot")
	v.optional(table+".reply", s.Reply, "empty", "success")
	if v.c.has(table+".max_age") && !s.MaxAge.Off && s.MaxAge.Limit <= 0 {
		v.add(table+".max_age", "would refuse everything", `write "30d", or "off" for captured requests`)
	}
	v.only(table, `it is for scheme = "token"`,
		"header", "id_header", "id_path", "type_header", "type_path", "default_type", "id_scope")
}

func (v *validation) token(table string, s *SourceConfig) {
	v.required(table, "token", s.Token.IsZero(), secretHint)
	if s.IDHeader != "" && s.IDPath != "" {
		v.add(table+".id_path", "stands beside id_header: an event has one id", "remove one of the two")
	}
	if s.TypeHeader != "" && s.TypePath != "" {
		v.add(table+".type_path", "stands beside type_header: an event has one type", "remove one of the two")
	}
	for _, h := range []struct{ key, name string }{
		{"header", s.Header}, {"id_header", s.IDHeader}, {"type_header", s.TypeHeader},
	} {
		if at := table + "." + h.key; v.c.has(at) && !headerName(h.name) {
			v.add(at, fmt.Sprintf("%q is not the name of a header", h.name), `write a name such as "X-Event-Id"`)
		}
	}
	v.optional(table+".id_scope", s.IDScope, "source", "type")
	v.only(table, `it is for scheme = "wecom"`, "encoding_aes_key", "previous_encoding_aes_key",
		"receive_ids", "endpoint", "reply", "max_age")
}

// headerName reports whether s can be the name of an HTTP header.
func headerName(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || strings.ContainsRune("!#$%&'*+-.^_`|~", r))
	})
}
