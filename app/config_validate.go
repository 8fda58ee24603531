package app

import (
	"cmp"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"idemd/receiver"
)

// validation collects what is wrong in a configuration whose values have the
// right types.
type validation struct {
	c        *Config
	broken   func(path string) bool // already reported
	problems []Problem
}

// validate checks all rules. Nothing is said about a value that broken knows.
func (c *Config) validate(broken func(path string) bool) []Problem {
	v := &validation{c: c, broken: broken}
	v.process()
	v.sources()
	v.handlers()
	v.windows()
	v.retired()
	return v.problems
}

// retired reports ids that cannot be given up.
func (v *validation) retired() {
	word := identifier()
	for i, id := range v.c.Retire {
		path := fmt.Sprintf("retire[%d]", i)
		switch {
		case !word.MatchString(id):
			v.add(path, fmt.Sprintf("%q is not an id", id), "write the id of a handler or source that is gone, its name if it had no id")
		case v.c.hasID(id):
			v.add(path, fmt.Sprintf("%q is the id of a handler or source that is configured", id), "remove it here, or remove that table")
		}
	}
}

// hasID reports whether a handler or a source has an id; it is for a
// configuration whose ids are not filled in yet.
func (c *Config) hasID(id string) bool {
	return slices.ContainsFunc(c.Handlers, func(h HandlerConfig) bool { return cmp.Or(h.ID, h.Name) == id }) ||
		slices.ContainsFunc(c.Sources, func(s SourceConfig) bool { return cmp.Or(s.ID, s.Name) == id })
}

// add reports path, unless something is reported there already.
func (v *validation) add(path, what, hint string) {
	if v.broken(path) || slices.ContainsFunc(v.problems, func(p Problem) bool { return p.Path == path }) {
		return
	}
	v.problems = append(v.problems, Problem{Path: path, Line: v.c.line(path), What: what, Hint: hint})
}

// line is where path stands; for an absent key, where its table begins.
func (c *Config) line(path string) int {
	for path != "" {
		if line, ok := c.places[path]; ok {
			return line
		}
		path = path[:max(strings.LastIndexByte(path, '.'), 0)]
	}
	return 0
}

func (c *Config) has(path string) bool {
	_, ok := c.places[path]
	return ok
}

// inOrder sorts problems as they stand in the file and puts names into their
// paths: handler[1] "crm".timeout.
func (c *Config) inOrder(problems []Problem) []Problem {
	for i := range problems {
		problems[i].Path = c.label(problems[i].Path)
	}
	slices.SortStableFunc(problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Path, b.Path))
	})
	return problems
}

func (c *Config) label(path string) string {
	head, rest, found := strings.Cut(path, "]")
	if !found {
		return path
	}
	table, number, _ := strings.Cut(head, "[")
	n, err := strconv.Atoi(number)
	name := ""
	switch {
	case err != nil || n < 0:
	case table == "source" && n < len(c.Sources):
		name = c.Sources[n].Name
	case table == "handler" && n < len(c.Handlers):
		name = c.Handlers[n].Name
	}
	if name == "" {
		return path
	}
	return head + "] " + strconv.Quote(name) + rest
}

func (v *validation) process() {
	c := v.c
	if c.DataDir == "" {
		v.add("data_dir", "is empty", `write the directory for idemd's data, such as "/var/lib/idemd"`)
	}
	v.oneOf("environment", string(c.Environment), string(Production), string(Test))
	if host, port, err := net.SplitHostPort(c.Receiver.Listen); err != nil {
		v.add("receiver.listen", fmt.Sprintf("%q is not host:port", c.Receiver.Listen), `write "127.0.0.1:8420", or ":8420" for all addresses`)
	} else if n, err := strconv.ParseUint(port, 10, 16); err != nil {
		v.add("receiver.listen", fmt.Sprintf("%q has no port between 0 and 65535", c.Receiver.Listen), `write "127.0.0.1:8420"`)
	} else if n == 0 && c.Environment == Production {
		v.add("receiver.listen", "port 0 is a new port at every start", "write the port that the platform calls")
	} else if strings.ContainsAny(host, "/ ") {
		v.add("receiver.listen", fmt.Sprintf("%q is not an address", host), `write "127.0.0.1:8420"`)
	}
	if n := c.Receiver.MaxBody; n < KiB || n > receiver.MaxMaxBody {
		v.add("receiver.max_body", fmt.Sprintf("%s is not between 1KiB and %s", n, Size(receiver.MaxMaxBody)), `write "1MiB"`)
	}
	if n := c.Receiver.InFlight; n < 1 || n > 65536 {
		v.add("receiver.in_flight", fmt.Sprintf("%d is not between 1 and 65536", n), "write 512")
	}
	if n := c.Receiver.Readers; n < 1 || n > 65536 {
		v.add("receiver.readers", fmt.Sprintf("%d is not between 1 and 65536", n), "write 4096")
	}
	if n := c.Receiver.BodyMemory; n < receiver.MinBodyMemory || n > TiB {
		v.add("receiver.body_memory", fmt.Sprintf("%s is not between %s and %s", n, Size(receiver.MinBodyMemory), TiB), `write "64MiB"`)
	}
	if c.has("queue.max_bytes") && c.Queue.MaxBytes < minQueue {
		v.add("queue.max_bytes", fmt.Sprintf("%s is too small for a queue", c.Queue.MaxBytes), "write at least "+strconv.Quote(minQueue.String()))
	}
	if c.has("queue.reserve") && c.Queue.Reserve < minReserve {
		v.add("queue.reserve", fmt.Sprintf("%s is too small to finish on", c.Queue.Reserve), "write at least "+strconv.Quote(minReserve.String()))
	}
	if c.Windows.ReplayLimit <= 0 {
		v.add("windows.replay_limit", "must be longer than nothing", `write "14d"`)
	}
	if c.Windows.DeadRetention <= 0 {
		v.add("windows.dead_retention", "must be longer than nothing", `write "30d"`)
	}
	v.cold("windows.cold", c.Windows.Cold)
	if sum := c.HistorySum(); c.has("queue.history") && c.Queue.History < sum.Needed && !v.broken("windows.replay_limit") {
		v.add("queue.history", fmt.Sprintf("%s is shorter than what replays need: %s", c.Queue.History, sum),
			fmt.Sprintf("write at least %q, or lower replay_limit", sum.Needed))
	}
}

// minQueue is the smallest queue that is worth having.
const minQueue = 16 * MiB

// minReserve is what runs and the queue may need while the next look at the disk
// is still to come.
const minReserve = MiB

func (v *validation) cold(path string, cold Duration) {
	if limit := v.c.Windows.ReplayLimit; cold < limit && !v.broken("windows.replay_limit") {
		v.add(path, fmt.Sprintf("%s is shorter than windows.replay_limit, %s: a replayed event could run again unnoticed", cold, limit),
			fmt.Sprintf("write at least %q, or lower replay_limit", limit))
	}
}

// oneOf reports a word that is none of the allowed ones. An absent key that has
// no default is reported as missing.
func (v *validation) oneOf(path, word string, allowed ...string) {
	if slices.Contains(allowed, word) {
		return
	}
	quoted := make([]string, len(allowed))
	for i, a := range allowed {
		quoted[i] = strconv.Quote(a)
	}
	hint := "write " + strings.Join(quoted, " or ")
	if !v.c.has(path) {
		v.add(path, "is missing", hint)
		return
	}
	v.add(path, fmt.Sprintf("%q is not one of its values", word), hint)
}

func (v *validation) optional(path, word string, allowed ...string) {
	if word != "" || v.c.has(path) {
		v.oneOf(path, word, allowed...)
	}
}

// only reports keys that mean nothing beside the scheme or kind of their table.
func (v *validation) only(table, reason string, keys ...string) {
	for _, key := range keys {
		if path := table + "." + key; v.c.has(path) {
			v.add(path, "means nothing here: "+reason, "remove it")
		}
	}
}

func identifier() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`) }

// name reports a name that is missing or no name, and an id that is no id.
func (v *validation) name(table, name, id string) {
	const hint = "write 1 to 64 letters, digits, - or _"
	word := identifier()
	if name == "" && !v.c.has(table+".name") {
		v.add(table+".name", "is missing", hint)
	} else if !word.MatchString(name) {
		v.add(table+".name", fmt.Sprintf("%q is not a name", name), hint)
	}
	if at := table + ".id"; (id != "" || v.c.has(at)) && !word.MatchString(id) {
		v.add(at, fmt.Sprintf("%q is not an id", id), hint)
	}
}

func (v *validation) secret(path string, s Secret) {
	if s.IsLiteral() && v.c.Environment != Test {
		v.add(path, "the secret itself stands in the configuration", secretHint+`; a literal one is for environment = "test"`)
	}
}

// httpURL reports what is no address that a request can be sent to.
func (v *validation) httpURL(path, text string) {
	const hint = `write "http://host:port/path"`
	u, err := url.Parse(text)
	switch {
	case err != nil:
		v.add(path, "is not a URL", hint)
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		v.add(path, "is not an http or https URL with a host", hint)
	case u.User != nil:
		v.add(path, "holds a user name or password", `remove it; for a handler write headers = { Authorization = "env:NAME" }`)
	case u.Fragment != "":
		v.add(path, "holds a #fragment, which is never sent", "remove it")
	}
}
