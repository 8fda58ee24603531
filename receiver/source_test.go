package receiver

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestValidate_NamesEveryProblemWithItsField(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*SourceConfig)
		field  string
	}{
		"no name":             {func(c *SourceConfig) { c.Name = "" }, "name"},
		"name with slash":     {func(c *SourceConfig) { c.Name = "a/b" }, "name"},
		"id with blank":       {func(c *SourceConfig) { c.ID = "a b" }, "id"},
		"unknown scheme":      {func(c *SourceConfig) { c.Scheme = "wecon" }, "scheme"},
		"no scheme":           {func(c *SourceConfig) { c.Scheme = "" }, "scheme"},
		"path without slash":  {func(c *SourceConfig) { c.Path = "cb" }, "path"},
		"path with wildcard":  {func(c *SourceConfig) { c.Path = "/{x}" }, "path"},
		"path with dots":      {func(c *SourceConfig) { c.Path = "/a/../b" }, "path"},
		"path with query":     {func(c *SourceConfig) { c.Path = "/a?b" }, "path"},
		"path of health":      {func(c *SourceConfig) { c.Path = "/healthz" }, "path"},
		"way to refuse":       {func(c *SourceConfig) { c.OnRefuse = "drop" }, "on_refuse"},
		"body too large":      {func(c *SourceConfig) { c.MaxBody = 4 << 20 }, "max_body"},
		"empty volatile path": {func(c *SourceConfig) { c.Volatile = []string{" "} }, "volatile"},
		"no token":            {func(c *SourceConfig) { c.Token = nil }, "token"},
		"three tokens":        {func(c *SourceConfig) { c.Token = []string{"a", "b", "c"} }, "token"},
		"no key":              {func(c *SourceConfig) { c.EncodingAESKey = nil }, "encoding_aes_key"},
		"three keys":          {func(c *SourceConfig) { c.EncodingAESKey = []string{"a", "b", "c"} }, "encoding_aes_key"},
		"unknown endpoint":    {func(c *SourceConfig) { c.Endpoint = "corp" }, "endpoint"},
		"unknown reply":       {func(c *SourceConfig) { c.Reply = "ok" }, "reply"},
		"negative age":        {func(c *SourceConfig) { c.MaxAge = -time.Hour }, "max_age"},
		"no receive ids":      {func(c *SourceConfig) { c.ReceiveIDs = nil }, "receive_ids"},
		"any beside an id":    {func(c *SourceConfig) { c.ReceiveIDs = []string{"ww1", "any"} }, "receive_ids"},
		"receive id twice":    {func(c *SourceConfig) { c.ReceiveIDs = []string{"ww1", "ww1"} }, "receive_ids"},
		"receive id blank":    {func(c *SourceConfig) { c.ReceiveIDs = []string{" ww1"} }, "receive_ids"},
		"field of token":      {func(c *SourceConfig) { c.IDPath = "id" }, "id_path"},
		"field of wecom":      {func(c *SourceConfig) { *c = tokenSource(); c.ReceiveIDs = []string{"ww1"} }, "receive_ids"},
		"age of token":        {func(c *SourceConfig) { *c = tokenSource(); c.MaxAge = time.Hour }, "max_age"},
		"header name":         {func(c *SourceConfig) { *c = tokenSource(); c.Header = "X Token" }, "header"},
		"path of id":          {func(c *SourceConfig) { *c = tokenSource(); c.IDHeader, c.IDPath = "", "a..b" }, "id_path"},
		"two places of id":    {func(c *SourceConfig) { *c = tokenSource(); c.IDPath = "id" }, "id_path"},
		"two places of type":  {func(c *SourceConfig) { *c = tokenSource(); c.TypeHeader, c.TypePath = "X-T", "t" }, "type_path"},
		"default type":        {func(c *SourceConfig) { *c = tokenSource(); c.DefaultType = "a b" }, "default_type"},
		"scope of ids":        {func(c *SourceConfig) { *c = tokenSource(); c.IDScope = "tenant" }, "id_scope"},
	} {
		source := wecomSource()
		c.change(&source)
		problems := Validate([]SourceConfig{tokenSource2(), source})
		if len(problems) != 1 || problems[0].Field != c.field || problems[0].Source != 1 || problems[0].What == "" || problems[0].Hint == "" {
			t.Errorf("%s: %v", name, problems)
		}
		if _, err := New(Config{Sources: []SourceConfig{source}, Publish: (&sink{}).publish}); err == nil {
			t.Errorf("%s: a receiver was made", name)
		}
		if _, err := Sign(source, nil, "", time.Time{}); err == nil {
			t.Errorf("%s: a request was signed", name)
		}
	}
}

func tokenSource2() SourceConfig {
	c := tokenSource()
	c.Name, c.Path = "other", "/callbacks/other/"
	return c
}

func TestValidate_FindsAllProblemsAtOnce(t *testing.T) {
	problems := Validate([]SourceConfig{
		{Name: "a", Scheme: "wecom"},
		{Name: "a", Scheme: "nope", Token: []string{"x"}},
		{Name: "b", ID: "a", Path: "/in/a", Scheme: "token", Token: []string{"x"}},
	})
	var got []string
	for _, p := range problems {
		got = append(got, strings.SplitN(p.Error(), ":", 2)[0])
	}
	want := []string{
		"source[0].token", "source[0].encoding_aes_key", "source[0].receive_ids",
		"source[1].scheme", "source[1].name", "source[2].id", "source[2].path",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
}

func TestValidateSecrets_NeverQuotesASecret(t *testing.T) {
	for _, secret := range []string{"", "secret with blanks", "geheimnis\n", "schlüssel"} {
		a, b := tokenSource(), wecomSource()
		a.Token, b.Token, b.EncodingAESKey = []string{secret}, []string{secret}, []string{secret}
		if problems := Validate([]SourceConfig{a, b}); len(problems) != 0 {
			t.Errorf("Validate looks at secrets: %v", problems)
		}
		problems := ValidateSecrets([]SourceConfig{a, b})
		if len(problems) != 3 || problems[0].Source != 0 || problems[2].Source != 1 {
			t.Errorf("%q: %v", secret, problems)
		}
		for _, p := range problems {
			if secret != "" && strings.Contains(p.Error(), strings.TrimSpace(secret)) {
				t.Errorf("%v tells the secret", p)
			}
		}
	}
	if problems := ValidateSecrets([]SourceConfig{tokenSource(), wecomSource()}); len(problems) != 0 {
		t.Errorf("good secrets: %v", problems)
	}
}

func TestWecom_ReceiveIDsAreASet(t *testing.T) {
	now := time.Unix(testClock, 0)
	for _, c := range []struct {
		frame    string
		accepted []string
		ok       bool
	}{
		{"ww1", []string{"ww1"}, true},
		{"ww2", []string{"ww1", "ww2"}, true},
		{"ww3", []string{"ww1", "ww2"}, false},
		{"", []string{"ww1"}, false},
		{"", []string{"ww1", ""}, true},
		{"ww1", []string{""}, false},
		{"ww9", []string{"any"}, true},
		{"", []string{"any"}, true},
	} {
		from, to := wecomSource(), wecomSource()
		from.ReceiveIDs, to.ReceiveIDs = []string{c.frame}, c.accepted
		signed, err := Sign(from, []byte(sysEvent("x")), "", now)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := wecomScheme(t, to).Open(&Request{RawQuery: signed.RawQuery, Body: signed.Body}, now); (err == nil) != c.ok {
			t.Errorf("frame for %q, accepted %q: %v", c.frame, c.accepted, err)
		}
	}
}

func TestWecom_AgeIsASoftLimit(t *testing.T) { // case 109
	signed, err := Sign(wecomSource(), []byte(sysEvent("x")), "", time.Unix(testClock, 0))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		maxAge, after time.Duration
		ok            bool
	}{
		{0, DefaultMaxAge, true},
		{0, DefaultMaxAge + time.Second, false},
		{time.Hour, time.Hour, true},
		{time.Hour, time.Hour + time.Second, false},
		{0, -time.Hour, true},
		{0, -time.Hour - time.Second, false},
		{AgeOff, 10 * 365 * 24 * time.Hour, true},
		{AgeOff, -10 * 365 * 24 * time.Hour, true},
	} {
		source := wecomSource()
		source.MaxAge = c.maxAge
		now := time.Unix(testClock, 0).Add(c.after)
		if _, err := wecomScheme(t, source).Open(&Request{RawQuery: signed.RawQuery, Body: signed.Body}, now); (err == nil) != c.ok {
			t.Errorf("max_age %s, %s later: %v", c.maxAge, c.after, err)
		}
	}
}

// Without a limit of age a timestamp still has ten digits: an observer can move
// digits between timestamp and nonce under one signature.
func TestWecom_TimestampHasTenDigitsAtAnyAge(t *testing.T) {
	for _, v := range loadVectors(t).Negative {
		if v.ID != "neg-same-signature-resplit" && v.ID != "neg-timestamp-not-number" {
			continue
		}
		c := v.source()
		c.MaxAge = AgeOff
		want := map[bool]error{true: ErrAuth, false: ErrMalformed}[v.Outcome == "reject_401"]
		_, err := wecomScheme(t, c).Open(&Request{RawQuery: v.Request.Query, Body: []byte(v.Request.Body)}, time.Now())
		if !errors.Is(err, want) {
			t.Errorf("%s: %v", v.ID, err)
		}
	}
}

// Two texts for one frame would be two signatures for it.
func TestWecom_CiphertextHasOneForm(t *testing.T) {
	key := wecomScheme(t, wecomSource()).keys[0]
	good := key.encrypt([]byte("0123456789abcdef"), []byte("hello"), "ww1") // 32 bytes: one = at the end
	if message, _, err := key.decrypt([]byte(good)); err != nil || string(message) != "hello" {
		t.Fatalf("%q, %v", message, err)
	}
	spare := []byte(good)
	spare[len(spare)-2]++ // bits that encode nothing
	for name, encrypt := range map[string]string{
		"line end inside": good[:10] + "\n" + good[10:],
		"line end behind": good + "\r\n",
		"spare bits":      string(spare),
		"no padding":      strings.TrimRight(good, "="),
	} {
		if _, _, err := key.decrypt([]byte(encrypt)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Frames that are authentic and encrypted, but not made as prescribed.
func TestWecom_FramesThatAreNoFrames(t *testing.T) {
	key := wecomScheme(t, wecomSource()).keys[0]
	head := "0123456789abcdef\x00\x00\x00\x00ww1"
	for name, frame := range map[string]string{
		"padding of 0":          head + strings.Repeat("\x00", 9),
		"padding of 33":         strings.Repeat("\x21", 64),
		"padding not all equal": head + strings.Repeat("\x09", 3) + "\x08" + strings.Repeat("\x09", 5),
		"nothing but padding":   strings.Repeat("\x20", 32),
		"no room for a length":  "0123456789abcdef" + strings.Repeat("\x10", 16),
		"length over the end":   "0123456789abcdef\x00\x00\x00\x04ww1" + strings.Repeat("\x09", 9),
	} {
		if _, _, err := key.decrypt([]byte(sealRaw(key, []byte(frame)))); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if message, id, err := key.decrypt([]byte(sealRaw(key, []byte(head+strings.Repeat("\x09", 9))))); err != nil || len(message) != 0 || string(id) != "ww1" {
		t.Errorf("good frame: %q for %q, %v", message, id, err)
	}
}
