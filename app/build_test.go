package app

import (
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"idemd"
	"idemd/consumer"
	"idemd/dedup"
	"idemd/receiver"
)

func parse(t *testing.T, text string) *Config {
	t.Helper()
	c, err := Parse([]byte(text), filepath.Join(t.TempDir(), "idemd.toml"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestReceiverSources_ResolvesSecretsInTheOrderOfTheirAge(t *testing.T) {
	t.Setenv("NEW", "new-token")
	t.Setenv("OLD", "old-token")
	c := parse(t, `
[[source]]
name = "shop"
id = "old-name"
scheme = "token"
token = "env:NEW"
previous_token = "env:OLD"
max_body = "2MiB"
`)
	got, err := c.ReceiverSources()
	if err != nil {
		t.Fatal(err)
	}
	want := []receiver.SourceConfig{{
		Name: "shop", ID: "old-name", Path: "/in/shop", Scheme: "token", MaxBody: 2 << 20,
		Token: []string{"new-token", "old-token"},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestReceiverSources_ReportsEverySecretThatCannotBeUsed(t *testing.T) {
	t.Setenv("BLANK", "two words")
	t.Setenv("SHORT", "hunter2")
	c := parse(t, `
[[source]]
name = "a"
scheme = "token"
token = "env:UNSET_IN_TESTS"

[[source]]
name = "b"
scheme = "wecom"
token = "file:absent"
encoding_aes_key = "env:SHORT"
receive_ids = ["ww1"]
`)
	_, err := c.ReceiverSources()
	var bad *ConfigError
	if !errors.As(err, &bad) || len(bad.Problems) != 2 {
		t.Fatalf("got %v", err)
	}
	for i, want := range []string{
		`source[0] "a".token, line 5: cannot be read: environment variable UNSET_IN_TESTS is not set`,
		`source[1] "b".token, line 10: cannot be read: open `,
	} {
		if got := bad.Problems[i].String(); !strings.HasPrefix(got, want) {
			t.Errorf("got %s", got)
		}
	}
	t.Setenv("UNSET_IN_TESTS", "fine")
	c.Sources[1].Token = SecretAt("env:BLANK")
	_, err = c.ReceiverSources()
	if !errors.As(err, &bad) || len(bad.Problems) != 2 || strings.Contains(err.Error(), "two words") || strings.Contains(err.Error(), "hunter2") {
		t.Fatalf("got %v", err)
	}
}

func TestSpecs_CarriesEverySetting(t *testing.T) {
	c := parse(t, `
[windows]
cold = "40d"
replay_limit = "20d"
[[source]]
name = "shop"
id = "old-name"
scheme = "token"
token = "file:x"
[[handler]]
name = "log"
sources = ["shop"]
kind = "log"
effect = "idempotent"
[[handler]]
name = "crm"
id = "crm-id"
sources = ["shop"]
types = ["order.*"]
kind = "http"
url = "http://127.0.0.1:1/"
effect = "irrevocable"
store_unavailable = "refuse"
timeout = "5s"
concurrency = 3
retry = []
on_mismatch = "drop"
on_duplicate = "handler:undo"
cold = "50d"
headers = { X-Team = "sales" }
answers = { "409" = "done" }
[[handler]]
name = "undo"
id = "undo-id"
kind = "log"
effect = "retryable"
store_unavailable = "refuse"
`)
	got, _, err := c.specs(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := got[0].Handler.(*consumer.Log); !ok {
		t.Errorf("got %T", got[0].Handler)
	}
	if _, ok := got[1].Handler.(*consumer.HTTP); !ok {
		t.Errorf("got %T", got[1].Handler)
	}
	want := []consumer.Spec{{
		ID: "log", Name: "log", Sources: []string{"old-name"}, Effect: dedup.Idempotent,
		Timeout: consumer.DefaultTimeout, Concurrency: consumer.DefaultConcurrency, Retry: consumer.DefaultRetry(),
		OnMismatch: consumer.MismatchPark, OnDuplicate: consumer.OnDuplicateDrop,
		Retain: 40 * day, ReplayLimit: 20 * day, Handler: got[0].Handler,
	}, {
		ID: "crm-id", Name: "crm", Sources: []string{"old-name"}, Types: []string{"order.*"}, Effect: dedup.Irrevocable,
		StoreUnavailable: consumer.Refuse, Timeout: 5 * time.Second, Concurrency: 3, Retry: []time.Duration{},
		OnMismatch: consumer.MismatchDrop, OnDuplicate: "handler:undo-id",
		Retain: 50 * day, ReplayLimit: 20 * day, Handler: got[1].Handler,
	}, {
		ID: "undo-id", Name: "undo", Effect: dedup.Retryable, StoreUnavailable: consumer.Refuse,
		Timeout: consumer.DefaultTimeout, Concurrency: consumer.DefaultConcurrency, Retry: consumer.DefaultRetry(),
		OnMismatch: consumer.MismatchPark, OnDuplicate: consumer.OnDuplicateDrop, DuplicatesOnly: true,
		Retain: 40 * day, ReplayLimit: 20 * day, Handler: got[2].Handler,
	}}
	same := cmp.Comparer(func(a, b consumer.Handler) bool { return a == b })
	if diff := cmp.Diff(want, got, same); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestSpecs_ReportsSecretsOfHandlers(t *testing.T) {
	c := parse(t, `
[[source]]
name = "shop"
scheme = "token"
token = "file:x"
[[handler]]
name = "crm"
sources = ["shop"]
kind = "http"
url = "http://127.0.0.1:1/"
effect = "retryable"
store_unavailable = "refuse"
secret = "env:UNSET_IN_TESTS"
headers = { Authorization = "env:UNSET_IN_TESTS" }
`)
	_, _, err := c.specs(slog.New(slog.DiscardHandler))
	var bad *ConfigError
	if !errors.As(err, &bad) || len(bad.Problems) != 2 {
		t.Fatalf("got %v", err)
	}
	if got := bad.Problems[1].String(); !strings.HasPrefix(got, `handler[0] "crm".headers.Authorization, line 14: cannot be read`) {
		t.Errorf("got %s", got)
	}
}

func TestQueueBytes_IsConfiguredOrHalfOfTheDisk(t *testing.T) {
	c := Default()
	c.DataDir = filepath.Join(t.TempDir(), "not", "there", "yet")
	n, err := c.QueueBytes()
	if err != nil || n <= 0 || n > int64(20*GiB) {
		t.Errorf("got %d, %v", n, err)
	}
	c.Queue.MaxBytes = 32 * MiB
	if n, err := c.QueueBytes(); err != nil || n != 32<<20 {
		t.Errorf("got %d, %v", n, err)
	}
}

func TestSocketPath_TooLongIsForTheOperator(t *testing.T) {
	c := Default()
	c.DataDir = "/" + strings.Repeat("x", 120)
	_, err := c.SocketPath()
	var operator *OperatorError
	if !errors.As(err, &operator) || operator.Hint == "" {
		t.Errorf("got %v", err)
	}
}

func TestExampleConfig_EveryKeyIsAcceptedByItsOwner(t *testing.T) {
	for _, name := range []string{
		"WECOM_TOKEN", "WECOM_TOKEN_OLD", "SHOP_TOKEN", "SHOP_TOKEN_OLD", "CRM_TOKEN", "CRM_SIGNING_SECRET",
		"GITHUB_SECRET", "GITHUB_SECRET_OLD",
	} {
		t.Setenv(name, "token-of-"+strings.ReplaceAll(name, "_", "-"))
	}
	t.Setenv("WECOM_AES_KEY", strings.Repeat("a", 43))
	t.Setenv("WECOM_AES_KEY_OLD", strings.Repeat("b", 43))
	for _, text := range []string{idemd.ExampleConfig(), uncommented()} {
		c := parse(t, text)
		if _, err := c.ReceiverSources(); err != nil {
			t.Error(err)
		}
		if _, _, err := c.specs(slog.New(slog.DiscardHandler)); err != nil {
			t.Error(err)
		}
	}
}
