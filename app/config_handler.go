package app

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The kinds of handlers.
const (
	kindHTTP = "http"
	kindExec = "exec"
	kindLog  = "log"
)

func (v *validation) handlers() {
	for i := range v.c.Handlers {
		table := fmt.Sprintf("handler[%d]", i)
		h := &v.c.Handlers[i]
		v.name(table, h.Name, h.ID)
		v.unique(i)
		v.handlerSources(table, h)
		for j, t := range h.Types {
			v.typePattern(fmt.Sprintf("%s.types[%d]", table, j), t)
		}
		v.effect(table, h)
		v.serialize(table, h)
		v.runs(table, h)
		v.oneOf(table+".on_mismatch", h.OnMismatch, "park", "drop")
		v.onDuplicate(table, h)
		if v.c.has(table + ".cold") {
			v.cold(table+".cold", h.Cold)
		}
		v.kind(table, h)
	}
}

// kind checks the keys that go with one kind of handler only.
func (v *validation) kind(table string, h *HandlerConfig) {
	v.oneOf(table+".kind", h.Kind, kindHTTP, kindExec, kindLog)
	switch h.Kind {
	case kindHTTP:
		v.http(table, h)
	case kindExec:
		v.exec(table, h)
	case kindLog:
		v.only(table, `it is for kind = "http" or "exec"`, "answers")
	}
	if h.Kind == kindHTTP || h.Kind == kindLog {
		v.only(table, `it is for kind = "exec"`, "command")
	}
	if h.Kind == kindExec || h.Kind == kindLog {
		v.only(table, `it is for kind = "http"`, "url", "headers", "secret", "proxy", "trust_retry_after",
			"ca_file", "client_cert", "client_key", "max_rate")
	}
}

func (v *validation) serialize(table string, h *HandlerConfig) {
	at := table + ".serialize_by"
	switch {
	case h.HoldOrder && h.SerializeBy == "":
		v.add(table+".hold_order", "means nothing without serialize_by", `write serialize_by, a path in the body, or "*"; or remove this`)
	case !v.c.has(at):
	case slices.Contains(strings.Split(h.SerializeBy, "."), ""):
		v.add(at, fmt.Sprintf("%q is not a path", h.SerializeBy), `write names joined by dots, such as "data.customer", or "*"`)
	case h.Effect == "idempotent":
		v.add(at, "needs a record of what waits, which an idempotent handler does not have", `remove it, or write effect = "retryable"`)
	}
}

// unique reports a name or an id that an earlier handler has.
func (v *validation) unique(i int) {
	h := &v.c.Handlers[i]
	for j := range v.c.Handlers[:i] {
		first := &v.c.Handlers[j]
		table, other := fmt.Sprintf("handler[%d]", i), v.c.label(fmt.Sprintf("handler[%d]", j))
		switch {
		case h.Name == first.Name:
			v.add(table+".name", fmt.Sprintf("%q is the name of %s, too", h.Name, other), "give each its own name")
		case cmp.Or(h.ID, h.Name) == cmp.Or(first.ID, first.Name):
			v.add(table+".id", fmt.Sprintf("%q is the id of %s, too", cmp.Or(h.ID, h.Name), other), "give each its own id")
		}
	}
}

func (v *validation) handlerSources(table string, h *HandlerConfig) {
	var known []string
	for i := range v.c.Sources {
		known = append(known, v.c.Sources[i].Name)
	}
	example := "demo"
	if len(known) > 0 {
		example = known[0]
	}
	v.required(table, "sources", len(h.Sources) == 0 && !v.c.duplicatesOnly(h), fmt.Sprintf("write sources = [%q]", example))
	for j, s := range h.Sources {
		at := fmt.Sprintf("%s.sources[%d]", table, j)
		switch {
		case !slices.Contains(known, s):
			v.add(at, fmt.Sprintf("there is no source %q", s), suggestName(s, known))
		case slices.Index(h.Sources, s) < j:
			v.add(at, fmt.Sprintf("%q is there twice", s), "remove one of the two")
		}
	}
}

// typePattern allows a * at the end only, where it matches any rest.
func (v *validation) typePattern(at, pattern string) {
	if i := strings.IndexByte(pattern, '*'); pattern == "" || i >= 0 && i < len(pattern)-1 {
		v.add(at, fmt.Sprintf("%q is not a type", pattern), `write a type, or its beginning and *: "change_contact.*"`)
	}
}

func (v *validation) effect(table string, h *HandlerConfig) {
	const effects = `write "idempotent" (a second run changes nothing), "retryable" (a second run is bearable) or "irrevocable" (never run twice)`
	at := table + ".effect"
	switch h.Effect {
	case "idempotent":
		v.optional(table+".store_unavailable", h.StoreUnavailable, "refuse", "allow")
		if v.c.has(table + ".on_mismatch") {
			v.add(table+".on_mismatch", "means nothing for an idempotent handler: no record tells payloads apart", "remove it")
		}
		return
	case "retryable", "irrevocable":
	default:
		what := fmt.Sprintf("%q is not an effect", h.Effect)
		if !v.c.has(at) {
			what = "is missing"
		}
		v.add(at, what, effects)
		return
	}
	store := table + ".store_unavailable"
	switch {
	case h.Effect == "irrevocable" && h.StoreUnavailable == "allow":
		v.add(store, `"allow" runs events without a claim, which an irrevocable handler must not`, `write "refuse"`)
	case h.StoreUnavailable == "" && !v.c.has(store):
		v.add(store, "is missing: what to do while claims cannot be stored", `write "refuse" (wait) or "allow" (run, and risk a repeat)`)
	default:
		v.oneOf(store, h.StoreUnavailable, "refuse", "allow")
	}
}

// The bounds of how a handler runs.
const (
	maxTimeout     = Duration(time.Hour)
	maxConcurrency = 1024
	maxRetries     = 100
)

func (v *validation) runs(table string, h *HandlerConfig) {
	if h.Timeout < Duration(time.Millisecond) || h.Timeout > maxTimeout {
		v.add(table+".timeout", fmt.Sprintf("%s is not between 1ms and %s", h.Timeout, maxTimeout), `write "30s"`)
	}
	if h.Concurrency < 1 || h.Concurrency > maxConcurrency {
		v.add(table+".concurrency", fmt.Sprintf("%d is not between 1 and %d", h.Concurrency, maxConcurrency), "write 8")
	}
	if len(h.Retry) > maxRetries {
		v.add(table+".retry", fmt.Sprintf("has %d waits, more than %d", len(h.Retry), maxRetries), "write fewer and longer ones")
	}
	for j, d := range h.Retry {
		if d <= 0 {
			v.add(fmt.Sprintf("%s.retry[%d]", table, j), "is no wait at all", `write at least "1s"`)
		}
	}
}

func (v *validation) http(table string, h *HandlerConfig) {
	v.required(table, "url", h.URL == "", `write "http://host:port/path"`)
	if h.URL != "" {
		v.httpURL(table+".url", h.URL)
	}
	if v.c.has(table + ".proxy") {
		v.httpURL(table+".proxy", h.Proxy)
	}
	v.secret(table+".secret", h.Secret)
	v.tls(table, h)
	for _, name := range slices.Sorted(maps.Keys(h.Headers)) {
		v.header(join(table+".headers", name), name, h.Headers[name])
	}
	v.answers(table, h, 200, 599, "an HTTP status", `write answers = { "409" = "done" }`)
}

func (v *validation) tls(table string, h *HandlerConfig) {
	keys := [...]string{"ca_file", "client_cert", "client_key"}
	if strings.HasPrefix(h.URL, "http://") {
		v.only(table, "the url is not one of https", keys[:]...)
		return
	}
	for i, empty := range [...]bool{h.CAFile == "", h.ClientCert == "", h.ClientKey.IsZero()} {
		if at := table + "." + keys[i]; empty && v.c.has(at) {
			v.add(at, "is empty", "name a file in PEM form")
		}
	}
	switch cert, key := v.c.has(table+".client_cert"), v.c.has(table+".client_key"); {
	case cert && !key:
		v.add(table+".client_key", "is missing beside client_cert", `write client_key = "file:PATH"`)
	case key && !cert:
		v.add(table+".client_cert", "is missing beside client_key", `write client_cert = "PATH"`)
	}
	v.secret(table+".client_key", h.ClientKey)
}

func (v *validation) exec(table string, h *HandlerConfig) {
	v.required(table, "command", len(h.Command) == 0, `write command = ["program", "argument"]`)
	for i, word := range h.Command {
		at := fmt.Sprintf("%s.command[%d]", table, i)
		switch {
		case i == 0 && word == "":
			v.add(at, "names no program", `write command = ["program", "argument"]`)
		case strings.ContainsRune(word, 0):
			v.add(at, "holds a zero byte, which no argument can", "remove it")
		}
	}
	v.answers(table, h, 0, 255, "an exit code", `write answers = { "3" = "done" }`)
}

// answers checks the meanings of the numbers from..to, which are called what.
func (v *validation) answers(table string, h *HandlerConfig, from, to int, what, hint string) {
	for _, number := range slices.Sorted(maps.Keys(h.Answers)) {
		at := join(table+".answers", number)
		if n, err := strconv.Atoi(number); err != nil || n < from || n > to || strconv.Itoa(n) != number {
			v.add(at, fmt.Sprintf("is not %s between %d and %d", what, from, to), hint)
			continue
		}
		v.oneOf(at, h.Answers[number], answers()...)
	}
}

// answers are the meanings that a status or an exit code may be given.
func answers() []string { return []string{"done", "no-effect", "permanent", "unknown"} }

// header checks one of the handler's own headers. Those that idemd or HTTP
// itself writes are not the configuration's.
func (v *validation) header(at, name string, value Secret) {
	canonical := http.CanonicalHeaderKey(name)
	reserved := strings.HasPrefix(canonical, "Idemd-") || strings.HasPrefix(canonical, "Ce-") || strings.HasPrefix(canonical, "Webhook-")
	switch canonical {
	case "Idempotency-Key", "Content-Type", "Content-Length", "Host", "Connection", "Transfer-Encoding", "Te", "Trailer", "Upgrade", "Expect":
		reserved = true
	}
	switch {
	case !headerName(name):
		v.add(at, "is not the name of a header", `write headers = { Authorization = "env:NAME" }`)
	case reserved:
		v.add(at, "is a header that idemd writes itself", "remove it")
	case canonical == "Authorization" || canonical == "Proxy-Authorization" || canonical == "Cookie":
		v.secret(at, value)
	}
}

// headerName reports whether s can be the name of an HTTP header.
func headerName(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || strings.ContainsRune("!#$%&'*+-.^_`|~", r))
	})
}

// required reports a key that is absent or empty.
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
