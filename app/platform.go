package app

import (
	"net/http"
	"strings"
	"time"
)

// platform is what a platform's documentation says about how long it goes on
// delivering an event.
type platform struct {
	name    string
	retry   time.Duration // by itself, from the first try to the last one
	byHand  time.Duration // for how long somebody can have it delivered again; 0 when not known
	url     string        // where it says so
	checked bool          // the page itself was read, not only what others quote from it
	note    string
}

// platforms lists what is known. The pages were looked up in December 2026; where
// checked is false, only quotations of them.
func platforms() []platform {
	const day = 24 * time.Hour
	return []platform{
		// Four tries, each given up after 5 s, if they follow one another at once:
		// the pauses between them are documented nowhere.
		{"WeCom", 20 * time.Second, 0, "https://developer.work.weixin.qq.com/document/path/90930", false,
			"3 retries after timeouts of 5s; the pauses between them are not documented"},
		{"Stripe", 3 * day, 0, "https://docs.stripe.com/webhooks/process-undelivered-events", true,
			"retried for up to three days"},
		{"GitHub", 0, 3 * day, "https://docs.github.com/webhooks/testing-and-troubleshooting-webhooks/redelivering-webhooks", true,
			"not retried; deliveries of the past 3 days can be redelivered by hand"},
		{"PayPal", 3 * day, 0, "https://developer.paypal.com/api/rest/webhooks/", false,
			"up to 25 tries in 3 days; later by hand"},
		// Since September 2024; before, 19 tries in 48 hours.
		{"Shopify", 4 * time.Hour, 0, "https://shopify.dev/changelog/updates-to-webhook-retry-mechanism", true,
			"8 retries in 4 hours"},
		// At once, after a minute, after five minutes.
		{"Slack", time.Hour, 0, "https://docs.slack.dev/apis/events-api/", false,
			"3 retries, the last one minutes after the first try; an hour is assumed"},
	}
}

// platformOf tells the platform of a source by its scheme, or by the header that
// carries the signature. False when nothing tells it.
func platformOf(s *SourceConfig) (platform, bool) {
	name := map[string]string{
		"X-Hub-Signature-256": "GitHub", "X-Hub-Signature": "GitHub", "Stripe-Signature": "Stripe",
		"X-Shopify-Hmac-Sha256": "Shopify", "X-Slack-Signature": "Slack", "Paypal-Transmission-Sig": "PayPal",
	}[http.CanonicalHeaderKey(s.Header)]
	if s.Scheme != schemeHMAC && s.Scheme != schemeToken {
		name = s.Scheme
	}
	for _, p := range platforms() {
		if strings.EqualFold(p.name, name) {
			return p, true
		}
	}
	return platform{}, false
}

// Where a retry span is from.
const (
	spanConfigured = "configured"
	spanDocumented = "documented"
	spanUnknown    = "unknown"
)

// retrySpan is for how long a source's platform may deliver one event again.
type retrySpan struct {
	Retry  time.Duration // by itself
	Reach  time.Duration // by itself or by hand, whichever is longer
	Origin string        // configured, documented or unknown
	platform
}

func (s *SourceConfig) retrySpan() retrySpan {
	p, known := platformOf(s)
	switch {
	case s.RetrySpan > 0:
		return retrySpan{s.RetrySpan.Std(), s.RetrySpan.Std(), spanConfigured, platform{name: p.name}}
	case known:
		return retrySpan{p.retry, max(p.retry, p.byHand), spanDocumented, p}
	}
	return retrySpan{Origin: spanUnknown}
}
