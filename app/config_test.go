package app

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"idemd"
)

// TestLoad_ReportsEveryProblemWithLineAndHint runs testdata/bad/*.toml. The
// expected messages stand in the file of the same name with .txt.
func TestLoad_ReportsEveryProblemWithLineAndHint(t *testing.T) {
	files, err := filepath.Glob("testdata/bad/*.toml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".toml"), func(t *testing.T) {
			_, err := Load(file)
			var bad *ConfigError
			if !errors.As(err, &bad) {
				t.Fatalf("Load gave %v, not a ConfigError", err)
			}
			var got strings.Builder
			for _, p := range bad.Problems {
				fmt.Fprintln(&got, p)
			}
			golden := strings.TrimSuffix(file, ".toml") + ".txt"
			if *update {
				if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

var update = flag.Bool("update", false, "write the expected messages anew")

func TestExampleConfig_HoldsTheDefaults(t *testing.T) {
	c, err := Parse([]byte(idemd.ExampleConfig()), "/etc/idemd/idemd.toml")
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	for _, part := range []struct{ got, want any }{
		{c.DataDir, want.DataDir},
		{c.Environment, want.Environment},
		{c.Receiver, want.Receiver},
		{c.Queue, want.Queue},
		{c.Windows, want.Windows},
	} {
		if diff := cmp.Diff(part.want, part.got); diff != "" {
			t.Errorf("-default +example\n%s", diff)
		}
	}
}

// uncommented gives the example with its commented keys switched on.
func uncommented() string {
	key := regexp.MustCompile(`(?m)^# (\[\[\w+\]\]|[a-z_]+ = )`)
	return key.ReplaceAllString(idemd.ExampleConfig(), "$1")
}

func TestExampleConfig_CommentedKeysShowTheDefaults(t *testing.T) {
	c, err := Parse([]byte(uncommented()), "/etc/idemd/idemd.toml")
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	if diff := cmp.Diff(want.Receiver, c.Receiver); diff != "" {
		t.Errorf("-default +example\n%s", diff)
	}
	if diff := cmp.Diff(want.Windows, c.Windows); diff != "" {
		t.Errorf("-default +example\n%s", diff)
	}
	plain, err := Parse([]byte(idemd.ExampleConfig()), "/etc/idemd/idemd.toml")
	if err != nil {
		t.Fatal(err)
	}
	got, source := c.Sources[0], plain.Sources[0]
	// These are said to have no default, or to be the scheme's.
	source.Volatile, source.PreviousToken, source.PreviousEncodingAESKey = got.Volatile, got.PreviousToken, got.PreviousEncodingAESKey
	source.RetrySpan = got.RetrySpan
	source.OnRefuse, source.Endpoint, source.Reply = "hold", "app", "empty"
	if diff := cmp.Diff(source, got, cmp.AllowUnexported(Secret{})); diff != "" {
		t.Errorf("-default +example\n%s", diff)
	}
	var h HandlerConfig
	h.setDefaults()
	crm := c.Handlers[1]
	for _, part := range []struct{ got, want any }{
		{crm.ID, crm.Name},
		{crm.Timeout, h.Timeout},
		{crm.Concurrency, h.Concurrency},
		{crm.Retry, h.Retry},
		{crm.OnMismatch, h.OnMismatch},
		{crm.OnDuplicate, h.OnDuplicate},
		{crm.Cold, want.Windows.Cold},
	} {
		if diff := cmp.Diff(part.want, part.got); diff != "" {
			t.Errorf("-default +example\n%s", diff)
		}
	}
}

func TestExampleConfig_NamesEveryKey(t *testing.T) {
	for _, table := range []any{Config{}, ReceiverSection{}, QueueSection{}, WindowsSection{}, SourceConfig{}, HandlerConfig{}} {
		for _, key := range fieldsOf(reflect.TypeOf(table)) {
			shown := regexp.MustCompile(`(?m)^(# )*(` + key + ` = |\[+` + key + `\]+$)`)
			if key != "" && !shown.MatchString(idemd.ExampleConfig()) {
				t.Errorf("key %q of %T is not shown", key, table)
			}
		}
	}
}

func TestParse_FillsWhatDependsOnOtherKeys(t *testing.T) {
	c, err := Parse([]byte(`
data_dir = "data"
[windows]
cold = "20d"
[[source]]
name = "a"
scheme = "token"
token = "file:a.token"
[[handler]]
name = "b"
kind = "log"
effect = "idempotent"
sources = ["a"]
`), "/srv/x/idemd.toml")
	if err != nil {
		t.Fatal(err)
	}
	s, h := c.Sources[0], c.Handlers[0]
	got := []any{c.DataDir, s.ID, s.Path, s.MaxBody, h.ID, h.Cold, h.Timeout.Std()}
	want := []any{"/srv/x/data", "a", "/in/a", MiB, "b", Duration(20 * day), 30 * time.Second}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestParse_TakesAByteOrderMark(t *testing.T) {
	c, err := Parse([]byte("\ufeff"+idemd.ExampleConfig()), "/etc/idemd/idemd.toml")
	if err != nil || len(c.Sources) == 0 {
		t.Fatalf("got %v", err)
	}
	_, err = Parse([]byte("\ufeffcolour = 1\n\ufeff"), "/etc/idemd/idemd.toml")
	var bad *ConfigError
	if !errors.As(err, &bad) || bad.Problems[0].Line != 2 {
		t.Errorf("only the first one is none of the text: got %v", err)
	}
}

func TestSuggestName_ListsEachNameOnce(t *testing.T) {
	for _, c := range []struct {
		known []string
		want  string
	}{
		{[]string{"a b", "t", "t"}, `known here: "a b", "t"`},
		{[]string{"t", "nowere"}, `did you mean "nowere"?`},
		{nil, "there is none at all"},
	} {
		if got := suggestName("nowhere", c.known); got != c.want {
			t.Errorf("%q: got %s", c.known, got)
		}
	}
}

func TestDemoConfig_IsValid(t *testing.T) {
	c := DemoConfig()
	if problems := c.validate(func(string) bool { return false }); len(problems) > 0 {
		t.Errorf("%v", problems)
	}
}

func TestLoad_SaysWhatToDoWithoutAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "idemd.toml")
	_, err := Load(file)
	var operator *OperatorError
	if !errors.As(err, &operator) || !strings.Contains(operator.Hint, "idemd init") {
		t.Errorf("got %v", err)
	}
}

func TestDuration_ReadsWhatItWrites(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"15d": 15 * day, "1d12h": 36 * time.Hour, "1h30m": 90 * time.Minute, "30s": 30 * time.Second,
		"1m30s": 90 * time.Second, "2h0m5s": 2*time.Hour + 5*time.Second, "500ms": 500 * time.Millisecond, "1d5s": day + 5*time.Second,
	} {
		d, err := ParseDuration(text)
		if err != nil || d.Std() != want || d.String() != text {
			t.Errorf("%s: got %v (%s), %v", text, d.Std(), d, err)
		}
	}
	for _, text := range []string{"", "30", "d", "1.5d", "-1d", "1d-2h", "-3s", "+3s", "1h2d", "106752d", "106751d24h", "one"} {
		if d, err := ParseDuration(text); err == nil {
			t.Errorf("%q: got %s", text, d)
		}
	}
}

func TestSize_ReadsWhatItWrites(t *testing.T) {
	for text, want := range map[string]Size{"20GiB": 20 * GiB, "1536KiB": 1536 * KiB, "7B": 7, "8388607TiB": 8388607 * TiB} {
		if s, err := ParseSize(text); err != nil || s != want || s.String() != text {
			t.Errorf("%s: got %d (%s), %v", text, s, s, err)
		}
	}
	for _, text := range []string{"", "20", "GiB", "20GB", "-1B", "1.5GiB", "8388608TiB"} {
		if s, err := ParseSize(text); err == nil {
			t.Errorf("%q: got %s", text, s)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(idemd.ExampleConfig()))
	f.Add([]byte(uncommented()))
	files, err := filepath.Glob("testdata/bad/*.toml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data, "/etc/idemd/idemd.toml")
		if err == nil {
			if again := c.validate(func(string) bool { return false }); len(again) > 0 {
				t.Errorf("accepted, and then: %v", again)
			}
			return
		}
		var bad *ConfigError
		if !errors.As(err, &bad) || len(bad.Problems) == 0 {
			t.Fatalf("got %v", err)
		}
		lines := strings.Count(string(data), "\n") + 1
		if slices.ContainsFunc(bad.Problems, func(p Problem) bool { return p.Line > lines || p.What == "" }) {
			t.Errorf("a problem without place or words: %+v", bad.Problems)
		}
	})
}

// Without [queue] history there is always enough of it for replays.
func TestHistorySum(t *testing.T) {
	for text, want := range map[string]string{
		"": "14d replay_limit + 1d = 15d, 15d",
		"[windows]\ncold = \"90d\"\nreplay_limit = \"20d\"\n":                             "20d replay_limit + 1d = 21d, 21d",
		"[windows]\nreplay_limit = \"2d\"\n":                                              "2d replay_limit + 1d = 3d, 15d",
		"[queue]\nhistory = \"3d\"\n[windows]\nreplay_limit = \"2d\"\n":                   "2d replay_limit + 1d = 3d, 3d",
		"[queue]\nhistory = \"400d\"\n[windows]\nreplay_limit = \"2d\"\ncold = \"30d\"\n": "2d replay_limit + 1d = 3d, 400d",
	} {
		sum := mustParse(t, "data_dir = \"/d\"\n"+text+"[[source]]\nname = \"s\"\nscheme = \"token\"\ntoken = \"env:T\"\n[[handler]]\nname = \"log\"\nsources = [\"s\"]\nkind = \"log\"\neffect = \"idempotent\"\n").HistorySum()
		if got := sum.String() + ", " + sum.History.String(); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}
