package receiver

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Values of SourceConfig.OnRefuse.
const (
	// OnRefuseStatus answers 503 with Retry-After.
	OnRefuseStatus = "status"

	// OnRefuseHold keeps an authentic request open and goes on trying to store
	// it; what cannot be stored in time is closed without an answer. For
	// platforms that call again only after timeouts and broken connections.
	OnRefuseHold = "hold"
)

// AgeOff as SourceConfig.MaxAge or Tolerance accepts requests of any age.
const AgeOff time.Duration = -1

// Limits and defaults of a source.
const (
	DefaultMaxBody = 1 << 20             // bytes
	MaxMaxBody     = 2 << 20             // bytes; a payload grows by less than half on its way to the queue
	DefaultMaxAge  = 30 * 24 * time.Hour // the cold window's default

	DefaultTolerance = 5 * time.Minute
)

// SourceConfig is one source. The zero value of a field means its default;
// a field that the source's scheme does not use must have its zero value.
type SourceConfig struct {
	Name     string // what people call it; [A-Za-z0-9_-], at most 64
	ID       string // goes into every key; default: Name
	Path     string // of its URL; default: /in/NAME
	Scheme   string // one of Schemes()
	OnRefuse string // OnRefuseStatus or OnRefuseHold; default by scheme

	MaxBody  int64    // bytes; default: DefaultMaxBody
	Volatile []string // JSON paths that the fingerprint leaves out; nil: the scheme's

	// Token is the shared secret, newest first; a second one is accepted while
	// it is being replaced. WeCom: the Token of the callback configuration.
	Token []string

	// For the scheme wecom.
	EncodingAESKey []string      // newest first, at most two
	ReceiveIDs     []string      // ids that a frame may be for; "" only if it is listed; or ["any"]
	Endpoint       string        // EndpointApp (default), EndpointSuite or EndpointBot
	Reply          string        // ReplyEmpty or ReplySuccess; default by endpoint
	MaxAge         time.Duration // of a request's timestamp; default: DefaultMaxAge; or AgeOff

	// For the scheme hmac.
	Secret          []string      // newest first; a second one is accepted while it is being replaced
	Algorithm       string        // AlgorithmSHA1, AlgorithmSHA256 (default) or AlgorithmSHA512
	Encoding        string        // of a signature: EncodingHex (default), EncodingBase64 or EncodingBase64URL
	Prefix          string        // stands before each signature in Header, e.g. "sha256="
	Separator       string        // between the entries of Header, one of which must be right; default: it is one
	TimestampHeader string        // holds the time of signing as Unix seconds or milliseconds
	Signed          string        // what is signed, of {body}, {timestamp}, {id} and text; default: "{body}"
	Tolerance       time.Duration // between the timestamp and now, both ways; default DefaultTolerance; or AgeOff

	// For the schemes token and hmac.
	Header      string // holds token or signature; default for a token: Authorization, as "Bearer TOKEN"
	IDHeader    string // holds the event id
	IDPath      string // JSON path of the event id, names joined by dots
	TypeHeader  string // holds the event's type
	TypePath    string // JSON path of the event's type
	DefaultType string // where a request names no type; default: "event"
	IDScope     string // IDScopeType (default) or IDScopeSource
}

// Schemes lists the names of all schemes.
func Schemes() []string { return slices.Sorted(maps.Keys(schemes)) }

// EffectiveID is the source's id: ID, or else Name.
func (c *SourceConfig) EffectiveID() string { return cmp.Or(c.ID, c.Name) }

// EffectivePath is the path of the source's URL: Path, or else /in/NAME.
func (c *SourceConfig) EffectivePath() string { return cmp.Or(c.Path, "/in/"+c.Name) }

func (c *SourceConfig) onRefuse() string { return cmp.Or(c.OnRefuse, schemes[c.Scheme].onRefuse) }

func (c *SourceConfig) maxBody() int64 { return cmp.Or(c.MaxBody, DefaultMaxBody) }

func (c *SourceConfig) volatile() []string {
	if c.Volatile != nil {
		return c.Volatile
	}
	return schemes[c.Scheme].volatile
}

// Problem is one thing that is wrong with a source's configuration.
type Problem struct {
	Source int    // index into the sources
	Field  string // key in the configuration file, e.g. "receive_ids"
	What   string // what is wrong
	Hint   string // what to write
}

// Error says all of it in one line.
func (p Problem) Error() string {
	return fmt.Sprintf("source[%d].%s: %s; %s", p.Source, p.Field, p.What, p.Hint)
}

// Validate reports everything that is wrong with sources, apart from what their
// secrets contain: Token, Secret and EncodingAESKey are counted, not looked at.
func Validate(sources []SourceConfig) []Problem {
	var all []Problem
	for i, c := range sources {
		problems := validateCommon(c)
		if entry, ok := schemes[c.Scheme]; ok {
			problems = append(problems, entry.validate(c)...)
		}
		all = append(all, at(i, problems)...)
	}
	return append(all, validateUnique(sources)...)
}

// ValidateSecrets reports what is wrong with the secrets of sources that
// Validate finds nothing wrong with. Problems never quote a secret.
func ValidateSecrets(sources []SourceConfig) []Problem {
	var all []Problem
	for i, c := range sources {
		if entry, ok := schemes[c.Scheme]; ok {
			_, problems := entry.make(c)
			all = append(all, at(i, problems)...)
		}
	}
	return all
}

func at(source int, problems []Problem) []Problem {
	for i := range problems {
		problems[i].Source = source
	}
	return problems
}

var sourceName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

func validateCommon(c SourceConfig) []Problem {
	var ps []Problem
	add := func(field, what, hint string) { ps = append(ps, Problem{Field: field, What: what, Hint: hint}) }

	if !sourceName.MatchString(c.Name) {
		add("name", fmt.Sprintf("%q cannot be a source's name", c.Name), "use 1 to 64 of A-Z a-z 0-9 _ -")
	}
	if c.ID != "" && !sourceName.MatchString(c.ID) {
		add("id", fmt.Sprintf("%q cannot be a source's id", c.ID), "use 1 to 64 of A-Z a-z 0-9 _ -, or leave it out")
	}
	if _, ok := schemes[c.Scheme]; !ok {
		add("scheme", fmt.Sprintf("there is no scheme %q", c.Scheme), "use one of: "+strings.Join(Schemes(), ", "))
	}
	if c.Path != "" && !validPath(c.Path) {
		add("path", fmt.Sprintf("%q cannot be a callback path", c.Path), `begin with "/", without "//", "..", "{", "}", "?" or blanks, not /healthz or /readyz`)
	}
	switch c.OnRefuse {
	case "", OnRefuseStatus, OnRefuseHold:
	default:
		add("on_refuse", fmt.Sprintf("%q is not a way to refuse", c.OnRefuse), `write "status" or "hold"`)
	}
	if c.MaxBody < 0 || c.MaxBody > MaxMaxBody {
		add("max_body", fmt.Sprintf("%d bytes is not possible", c.MaxBody), "use at most 2MiB, or leave it out for 1MiB")
	}
	for _, path := range c.Volatile {
		if strings.TrimSpace(path) == "" {
			add("volatile", "a path is empty", `write names joined by dots, such as "data.sent_at"`)
		}
	}
	return ps
}

var pathPattern = regexp.MustCompile(`^(/[A-Za-z0-9_.~!$&'()*+,;=:@-]+)+/?$`)

func validPath(path string) bool {
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "." || segment == ".." {
			return false
		}
	}
	return pathPattern.MatchString(path) && path != healthPath && path != readyPath
}

func validateUnique(sources []SourceConfig) []Problem {
	var ps []Problem
	names, ids, paths := map[string]int{}, map[string]int{}, map[string]int{}
	claim := func(seen map[string]int, i int, field, value, hint string) {
		if first, ok := seen[value]; ok {
			ps = append(ps, Problem{i, field, fmt.Sprintf("%q is already that of source[%d]", value, first), hint})
			return
		}
		seen[value] = i
	}
	for i := range sources {
		c := &sources[i]
		before := len(ps)
		claim(names, i, "name", c.Name, "give each source a name of its own")
		if len(ps) > before {
			continue // id and path follow from the name
		}
		claim(ids, i, "id", c.EffectiveID(), "give each source an id of its own")
		claim(paths, i, "path", c.EffectivePath(), "give each source a path of its own")
	}
	return ps
}

// countSecrets reports a secret that is missing, or has too many values.
func countSecrets(field string, values []string) []Problem {
	switch {
	case len(values) == 0:
		return []Problem{{Field: field, What: "is missing", Hint: `write where it is, e.g. "env:SOURCE_` + strings.ToUpper(field) + `"`}}
	case len(values) > 2:
		return []Problem{{Field: field, What: "has more than two values", Hint: "keep the new one and the one that it replaces"}}
	}
	return nil
}

// unused reports the fields that have a value though the scheme does not use them.
func unused(c SourceConfig, scheme string, used ...string) []Problem {
	given := map[string]bool{
		"token": len(c.Token) > 0, "encoding_aes_key": len(c.EncodingAESKey) > 0, "receive_ids": len(c.ReceiveIDs) > 0,
		"endpoint": c.Endpoint != "", "reply": c.Reply != "", "max_age": c.MaxAge != 0,
		"header": c.Header != "", "id_header": c.IDHeader != "", "id_path": c.IDPath != "",
		"type_header": c.TypeHeader != "", "type_path": c.TypePath != "",
		"default_type": c.DefaultType != "", "id_scope": c.IDScope != "",
		"secret": len(c.Secret) > 0, "algorithm": c.Algorithm != "", "encoding": c.Encoding != "",
		"prefix": c.Prefix != "", "separator": c.Separator != "", "timestamp_header": c.TimestampHeader != "",
		"signed": c.Signed != "", "tolerance": c.Tolerance != 0,
	}
	var ps []Problem
	for _, field := range slices.Sorted(maps.Keys(given)) {
		if given[field] && !slices.Contains(used, field) {
			ps = append(ps, Problem{Field: field, What: "is not used by scheme " + scheme, Hint: "remove it"})
		}
	}
	return ps
}

// validateTokens looks at the contents of shared tokens. Two may be equal: of a
// token and a key that belong together, often only one is replaced.
func validateTokens(tokens []string) []Problem {
	var ps []Problem
	for _, t := range tokens {
		switch {
		case t == "":
			ps = append(ps, Problem{Field: "token", What: "is empty", Hint: "check where the secret comes from"})
		case t != strings.TrimSpace(t) || strings.ContainsFunc(t, func(r rune) bool { return r < 0x21 || r > 0x7e }):
			ps = append(ps, Problem{Field: "token", What: "has blanks or characters outside ASCII", Hint: "copy it again, without a line end"})
		}
	}
	return ps
}

// buildScheme makes the scheme of a source, or the error that its problems are.
func buildScheme(c SourceConfig) (Scheme, error) {
	problems := Validate([]SourceConfig{c})
	if len(problems) == 0 {
		var s Scheme
		if s, problems = schemes[c.Scheme].make(c); len(problems) == 0 {
			return s, nil
		}
	}
	return nil, joinProblems(problems)
}

// Sign makes the request that the platform of a source would send for payload.
// id goes where the scheme carries an event id outside the payload, if it does.
// It fails when the source's configuration has problems.
func Sign(c SourceConfig, payload []byte, id string, now time.Time) (Signed, error) {
	s, err := buildScheme(c)
	if err != nil {
		return Signed{}, fmt.Errorf("sign request: %w", err)
	}
	return s.Sign(payload, id, now)
}

// Sample makes a payload to try a source with, whose event id is id as far as
// the scheme carries ids in payloads. It fails when the source's configuration
// has problems.
func Sample(c SourceConfig, id string) ([]byte, error) {
	s, err := buildScheme(c)
	if err != nil {
		return nil, fmt.Errorf("make sample: %w", err)
	}
	return s.Sample(id), nil
}
