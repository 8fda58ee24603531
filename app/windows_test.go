package app

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"idemd/admin"
	"idemd/consumer"
	"idemd/dedup/ledger"
)

func TestRetrySpan_IsConfiguredOrDocumentedOrUnknown(t *testing.T) {
	type span struct {
		retry, reach time.Duration
		origin       string
	}
	hmac := func(header string) SourceConfig { return SourceConfig{Scheme: schemeHMAC, Header: header} }
	for name, c := range map[string]struct {
		source SourceConfig
		want   span
	}{
		"WeCom":      {SourceConfig{Scheme: schemeWeCom}, span{20 * time.Second, 20 * time.Second, spanDocumented}},
		"Stripe":     {hmac("stripe-signature"), span{3 * day, 3 * day, spanDocumented}},
		"GitHub":     {hmac("X-Hub-Signature-256"), span{0, 3 * day, spanDocumented}},
		"Shopify":    {hmac("X-Shopify-Hmac-SHA256"), span{4 * time.Hour, 4 * time.Hour, spanDocumented}},
		"Slack":      {hmac("X-Slack-Signature"), span{time.Hour, time.Hour, spanDocumented}},
		"PayPal":     {hmac("PAYPAL-TRANSMISSION-SIG"), span{3 * day, 3 * day, spanDocumented}},
		"a token":    {SourceConfig{Scheme: schemeToken}, span{0, 0, spanUnknown}},
		"any hmac":   {hmac("X-Signature"), span{0, 0, spanUnknown}},
		"configured": {SourceConfig{Scheme: schemeWeCom, RetrySpan: Duration(day)}, span{day, day, spanConfigured}},
	} {
		got := c.source.retrySpan()
		if diff := cmp.Diff(c.want, span{got.Retry, got.Reach, got.Origin}, cmp.AllowUnexported(span{})); diff != "" {
			t.Errorf("%s: -want +got\n%s", name, diff)
		}
		if got.Origin == spanDocumented && (!strings.HasPrefix(got.url, "https://") || got.note == "") {
			t.Errorf("%s: no source: %+v", name, got)
		}
	}
	doc, err := os.ReadFile("../docs/windows.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range platforms() {
		if !strings.Contains(string(doc), "<"+p.url+">") {
			t.Errorf("docs/windows.md does not name %s of %s", p.url, p.name)
		}
	}
}

// windowsConfig has a source of which the platform's retries are known, and one
// that can be delivered again by hand only.
func windowsConfig(t *testing.T) *Config {
	t.Helper()
	return mustParse(t, `
[[source]]
name = "stripe"
id = "stripe-id"
scheme = "hmac"
secret = "env:S"
header = "Stripe-Signature"
[[source]]
name = "github"
scheme = "hmac"
secret = "env:S"
header = "X-Hub-Signature-256"
[[handler]]
name = "crm"
sources = ["stripe", "github"]
kind = "log"
effect = "retryable"
store_unavailable = "refuse"
[[handler]]
name = "short"
sources = ["github"]
kind = "log"
effect = "irrevocable"
store_unavailable = "refuse"
cold = "20d"
`)
}

func TestSourceWindows_JudgesByDocumentsAndArrivals(t *testing.T) {
	c := windowsConfig(t)
	arrivals := []ledger.Arrivals{
		{Source: "github", Distribution: ledger.Distribution{Count: 100, P99: 20 * time.Minute, Max: 21 * day}},
		{Source: "github", Type: "push", Distribution: ledger.Distribution{Count: 100}},
		{Source: "stripe", Distribution: ledger.Distribution{Count: 100, P99: 100 * day}}, // not its id
	}
	stripe := c.sourceWindows(&c.Sources[0], arrivals)
	if stripe.Verdict != string(ledger.TooShort) || len(stripe.Warnings) != 1 || !strings.Contains(stripe.Warnings[0], "hot, 2h, is shorter than 3d") ||
		stripe.Arrivals.Count != 0 || time.Duration(stripe.Cold) != 30*day {
		t.Errorf("got %+v", stripe)
	}
	github := c.sourceWindows(&c.Sources[1], arrivals)
	if len(github.Warnings) != 1 || !strings.Contains(github.Warnings[0], "cold, 20d, is shorter than 21d") ||
		time.Duration(github.RecommendFrom) != 40*time.Minute || time.Duration(github.RecommendHot) != time.Hour ||
		len(github.Types) != 1 || time.Duration(github.Cold) != 20*day {
		t.Errorf("got %+v", github)
	}
	c.Handlers = nil
	if none := c.sourceWindows(&c.Sources[0], nil); none.Verdict != string(ledger.TooFew) || len(none.Warnings) != 0 {
		t.Errorf("without records: %+v", none)
	}
}

func TestRunTimes_NearTheTimeoutAreAWarning(t *testing.T) {
	spec := &consumer.Spec{Name: "crm", Timeout: 10 * time.Second}
	near := runTimes(spec, consumer.RunTimes{Count: 100, P95: 9 * time.Second})
	far := runTimes(spec, consumer.RunTimes{Count: 100, P95: time.Second})
	if len(near.Warnings) != 1 || !strings.Contains(near.Warnings[0], "takes 9s or longer, and they are cut after 10s") || len(far.Warnings) != 0 {
		t.Errorf("got %q, %q", near.Warnings, far.Warnings)
	}
}

// A kill -9 loses nothing of what was suppressed more than a second ago, and
// damage to it does not keep idemd from starting.
func TestApp_SuppressionsOutliveACrash(t *testing.T) {
	d := newDaemon(t, "[[handler]]\nname = \"crm\"\nsources = [\"src\"]\nkind = \"log\"\neffect = \"retryable\"\nstore_unavailable = \"refuse\"\n")
	d.start("", 0)
	d.mustSend("e1")
	until(t, "the run", func() bool { return d.state("crm", "e1") == "done" })
	d.mustSend("e1")
	file := func() string { // one that has been written to, not only made
		names, err := filepath.Glob(filepath.Join(d.dir, "ledger", "*.log"))
		if err != nil || len(names) == 0 {
			return ""
		}
		if fi, err := os.Stat(names[0]); err != nil || fi.Size() == 0 {
			return ""
		}
		return names[0]
	}
	until(t, "the ledger", func() bool { return file() != "" })
	d.kill()
	d.start("", 0)
	client := admin.NewClient(admin.SocketPath(d.dir))
	defer client.Close()
	why, err := client.Why(t.Context(), "e1", "", 0)
	if err != nil || len(why.Handlers) != 1 || len(why.Handlers[0].Suppressions) == 0 {
		t.Fatalf("got %+v, %v", why, err)
	}
	if s := why.Handlers[0].Suppressions[0]; s.Verdict != "done" || s.Payload != "same" || s.Seq != 2 || s.RecordSeq != 1 ||
		s.Handler != "crm" || s.Fence == 0 || s.Redelivery || s.Since == 0 {
		t.Errorf("got %+v", s)
	}
	for _, s := range why.Handlers[0].Suppressions[1:] { // acks do not outlive a crash
		if !s.Redelivery {
			t.Errorf("sent once, told twice: %+v", s)
		}
	}
	w, err := client.Windows(t.Context(), "src")
	if err != nil || len(w.Sources) != 1 || w.Sources[0].Arrivals.Count != 1 {
		t.Errorf("got %+v, %v", w, err)
	}
	d.kill()
	if err := os.WriteFile(file(), []byte("this is no ledger, and long enough"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.start("", 0)
	st, err := client.Status(t.Context())
	if err != nil || !st.Ready || !slices.ContainsFunc(st.Warnings, func(s string) bool { return strings.Contains(s, "ledger file is damaged") }) {
		t.Errorf("got %q, %v", st.Warnings, err)
	}
}
