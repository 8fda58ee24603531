package app

import (
	"strings"
	"testing"

	"idemd/admin"
	"idemd/consumer"
)

func planConfig(t *testing.T, old, with string) *Config {
	t.Helper()
	const text = `
retire = []
data_dir = "/var/lib/idemd"
environment = "test"
[receiver]
listen = "127.0.0.1:8420"
in_flight = 512
readers = 4096
body_memory = "64MiB"
[queue]
max_bytes = "1GiB"
[windows]
hot = "2h"
[[source]]
name = "shop"
scheme = "token"
token = "shop-token"
id_header = "X-Id"
[[source]]
name = "left"
scheme = "token"
token = "left-token"
id_header = "X-Id"
[[handler]]
name = "crm"
sources = ["shop", "left"]
kind = "log"
effect = "idempotent"
[[handler]]
name = "erp"
sources = ["shop"]
kind = "log"
effect = "idempotent"
`
	if !strings.Contains(text, old) {
		t.Fatalf("%q is not in the configuration", old)
	}
	if old == `name = "left"` { // or it would name a source that there is not
		return mustParse(t, strings.Replace(strings.Replace(text, `, "left"`, "", 1), old, with, 1))
	}
	return mustParse(t, strings.Replace(text, old, with, 1))
}

func TestNeedRestart(t *testing.T) {
	base := planConfig(t, "", "")
	for _, c := range []struct{ old, with, path string }{
		{`"/var/lib/idemd"`, `"/srv"`, "data_dir"},
		{":8420", ":8421", "receiver.listen"},
		{"512", "513", "receiver.in_flight"},
		{"4096", "4097", "receiver.readers"},
		{"64MiB", "65MiB", "receiver.body_memory"},
		{"1GiB", "2GiB", "queue"},
		{"2h", "3h", ""},
		{`"test"`, `"test"`, ""},
		{`"shop-token"`, `"new-token"`, ""},
	} {
		got := needRestart(base, planConfig(t, c.old, c.with))
		switch {
		case c.path == "" && len(got) > 0:
			t.Errorf("%s: %v", c.with, got)
		case c.path != "" && (len(got) != 1 || got[0].Path != c.path || got[0].Line == 0):
			t.Errorf("%s: got %v, want %s", c.with, got, c.path)
		}
	}
}

func planSetup(t *testing.T, c *Config) *setup {
	t.Helper()
	sources, err := c.ReceiverSources()
	if err != nil || len(sources) != len(c.Sources) {
		t.Fatal(err)
	}
	specs, digests, err := c.specs(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &setup{cfg: c, specs: specs, digests: digests}
}

func TestVanished(t *testing.T) {
	old := planSetup(t, planConfig(t, "", ""))
	renamed := planConfig(t, `name = "erp"`, `name = "books"`)
	for name, c := range map[string]struct {
		next     *Config
		handlers map[string]openRuns
		sources  map[string]openRuns
		want     string
	}{
		"nothing is left":   {next: renamed},
		"a run is left":     {next: renamed, handlers: map[string]openRuns{"erp": {open: 2}}, want: `handler "erp": the id erp is gone, and 2 of its runs are not settled; write id = "erp"`},
		"an event is left":  {next: renamed, handlers: map[string]openRuns{"erp": {queued: 3}}, want: "3 events are queued"},
		"its id stays":      {next: planConfig(t, `name = "erp"`, "name = \"books\"\nid = \"erp\""), handlers: map[string]openRuns{"erp": {open: 2}}},
		"retired":           {next: planConfig(t, `name = "erp"`, `name = "books"`).retiring("erp"), handlers: map[string]openRuns{"erp": {open: 2, queued: 1}}},
		"of a source":       {next: planConfig(t, `name = "left"`, `name = "right"`), sources: map[string]openRuns{"left": {open: 1}}, want: `source "left": the id left is gone`},
		"of another source": {next: planConfig(t, `name = "left"`, `name = "right"`), sources: map[string]openRuns{"shop": {open: 1}}},
	} {
		got := vanished(old, c.next, c.handlers, c.sources)
		if c.want == "" && len(got) > 0 || c.want != "" && (len(got) != 1 || !strings.Contains(got[0].String(), c.want)) {
			t.Errorf("%s: got %v, want %q", name, got, c.want)
		}
	}
}

func (c *Config) retiring(id string) *Config { c.Retire = []string{id}; return c }

func TestChanges(t *testing.T) {
	old := planSetup(t, planConfig(t, "", ""))
	for name, c := range map[string]struct {
		old, with string
		secret    string // the source whose secret changed
		want      []admin.Change
	}{
		"nothing":          {},
		"a handler's key":  {old: `effect = "idempotent"`, with: "effect = \"idempotent\"\nconcurrency = 3", want: []admin.Change{{Kind: "handler", Name: "crm", What: admin.Changed}}},
		"a source's key":   {old: `id_header = "X-Id"`, with: `id_header = "X-Other"`, want: []admin.Change{{Kind: "source", Name: "shop", What: admin.Changed}}},
		"a secret's value": {secret: "left", want: []admin.Change{{Kind: "source", Name: "left", What: admin.Changed}}},
		"hot":              {old: "2h", with: "1h", want: []admin.Change{{Kind: "windows", What: admin.Changed}}},
		"another handler": {old: `name = "erp"`, with: `name = "books"`,
			want: []admin.Change{{Kind: "handler", Name: "books", What: admin.Added}, {Kind: "handler", Name: "erp", What: admin.Removed}}},
		"a source more": {old: "[[handler]]", with: "[[source]]\nname = \"more\"\nscheme = \"token\"\ntoken = \"x\"\nid_header = \"X-Id\"\n[[handler]]",
			want: []admin.Change{{Kind: "source", Name: "more", What: admin.Added}}},
	} {
		got := changes(old, planSetup(t, planConfig(t, c.old, c.with)), map[string]bool{c.secret: true})
		if len(got) != len(c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
			continue
		}
		for i := range got {
			if got[i] != c.want[i] {
				t.Errorf("%s: got %v, want %v", name, got, c.want)
			}
		}
	}
}

// A handler whose secret is another one is another handler, though its table is
// the same.
func TestSpecs_DigestCoversSecretsAndFiles(t *testing.T) {
	const text = `environment = "test"
[[source]]
name = "shop"
scheme = "token"
token = "shop-token"
[[handler]]
name = "crm"
sources = ["shop"]
kind = "http"
url = "http://127.0.0.1:9/"
effect = "idempotent"
headers = { A = "env:IDEMD_TEST_A", B = "env:IDEMD_TEST_B" }
`
	digestOf := func(a, b string) digest {
		t.Setenv("IDEMD_TEST_A", a)
		t.Setenv("IDEMD_TEST_B", b)
		var specs []consumer.Spec
		specs, digests, err := mustParse(t, text).specs(nil)
		if err != nil {
			t.Fatal(err)
		}
		closeHandlers(specs)
		return digests[0]
	}
	base := digestOf("1", "23")
	if base != digestOf("1", "23") {
		t.Error("the same is another")
	}
	if base == digestOf("1", "24") || base == digestOf("12", "3") {
		t.Error("another secret is the same")
	}
}
