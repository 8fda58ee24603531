package consumer

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"time"
)

const (
	// maxAnswer is how much of an answer's body is read, so that its connection
	// can be used again. A longer one costs its connection.
	maxAnswer = 64 << 10

	// idleFor is how long an unused connection is kept: less than the 5 s after
	// which common servers close theirs, for a request that meets the close is
	// lost with an unknown outcome.
	idleFor = 4 * time.Second

	dialTimeout = 10 * time.Second
)

// HTTPConfig says where an HTTP handler sends events.
type HTTPConfig struct {
	URL         string            // http or https; user and password become basic authentication
	Headers     map[string]string // own headers, secrets resolved
	Secret      string            // of the Standard Webhooks signature ("whsec_" and base64, or as it is); none when empty
	Answers     map[string]string // own classification, status to class: "409" = "done"
	Proxy       string            // URL of a proxy; none when empty, whatever the environment says
	Concurrency int               // connections kept open; DefaultConcurrency when 0
	TrustWait   bool              // believe in Retry-After also for irrevocable runs: no proxy writes it
	TLS         *tls.Config       // nil for the system's roots
	Now         func() time.Time  // time.Now when nil
}

// HTTP is the handler that sends an event as one POST request. An attempt is
// exactly one request on the wire: no redirect is followed and nothing is sent
// again when a connection breaks.
type HTTP struct {
	url       *url.URL
	headers   http.Header
	signer    *signer
	own       map[int]Class
	trustWait bool
	transport *http.Transport
	now       func() time.Time
}

// NewHTTP makes an HTTP handler. The error says what is wrong with cfg; it holds
// no secret and no password.
func NewHTTP(cfg HTTPConfig) (*HTTP, error) {
	target, err := parseURL(cfg.URL)
	if err != nil {
		return nil, fmt.Errorf("parse url: %w", err)
	}
	headers, err := ownHeaders(cfg.Headers)
	if err != nil {
		return nil, fmt.Errorf("check headers: %w", err)
	}
	own, err := ParseAnswers(cfg.Answers)
	if err != nil {
		return nil, err
	}
	sign, err := newSigner(cfg.Secret)
	if err != nil {
		return nil, fmt.Errorf("parse secret: %w", err)
	}
	if target.User != nil && headers.Get("Authorization") == "" {
		headers.Set("Authorization", basicAuth(target.User))
	}
	target.User, target.Fragment = nil, ""
	h := &HTTP{url: target, headers: headers, signer: sign, own: own, trustWait: cfg.TrustWait, now: cfg.Now}
	if h.now == nil {
		h.now = time.Now
	}
	h.transport = newTransport(orDefault(cfg.Concurrency, DefaultConcurrency), cfg.TLS)
	if cfg.Proxy != "" {
		proxy, err := parseURL(cfg.Proxy)
		if err != nil {
			return nil, fmt.Errorf("parse proxy: %w", err)
		}
		h.transport.Proxy = http.ProxyURL(proxy)
	}
	return h, nil
}

// newTransport makes a transport without surprises: no proxy from the
// environment, no HTTP/2 (it repeats requests by its own rules), no
// decompression.
func newTransport(concurrency int, tlsConfig *tls.Config) *http.Transport {
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}
	return &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &countedConn{Conn: conn}, nil
		},
		TLSClientConfig:        tlsConfig,
		TLSHandshakeTimeout:    dialTimeout,
		TLSNextProto:           map[string]func(string, *tls.Conn) http.RoundTripper{},
		MaxIdleConns:           concurrency,
		MaxIdleConnsPerHost:    concurrency,
		IdleConnTimeout:        idleFor,
		MaxResponseHeaderBytes: maxAnswer,
		DisableCompression:     true,
	}
}

// Close gives up the idle connections.
func (h *HTTP) Close() error {
	h.transport.CloseIdleConnections()
	return nil
}

// Handle sends the event and classifies what comes back. Of the answer only its
// status, Retry-After and Idemd-Outcome are looked at.
func (h *HTTP) Handle(ctx context.Context, a *Attempt) Answer {
	var sent wire
	resp, err := h.transport.RoundTrip(h.request(sent.trace(ctx), a))
	if err != nil {
		return classifyError(ctx, err, sent.nothing())
	}
	drain(resp)
	return Classify(Reply{
		Status: resp.StatusCode, RetryAfter: resp.Header.Get("Retry-After"), Outcome: resp.Header.Get("Idemd-Outcome"),
		TrustWait: h.trustWait, Now: h.now(),
	}, h.own)
}

// request builds the one request. Its body is neither nil nor of a kind that
// net/http can rewind: Go's transport repeats a request that has an
// Idempotency-Key when a reused connection breaks, unless it cannot repeat the
// body, and an empty body counts as repeatable.
func (h *HTTP) request(ctx context.Context, a *Attempt) *http.Request {
	body := a.Event.Body
	req := &http.Request{
		Method: http.MethodPost, URL: h.url, Host: h.url.Host,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header:        maps.Clone(h.headers),
		Body:          io.NopCloser(bytes.NewReader(body)),
		ContentLength: int64(len(body)),
	}
	setEventHeaders(req.Header, a)
	if h.signer != nil {
		h.signer.sign(req.Header, a.Key.RunID(), h.now(), body)
	}
	return req.WithContext(ctx)
}

// drain reads a bounded part of the body, so that the connection can be used
// again. The status has been read: what goes wrong here changes nothing. What
// follows a 101 is no body but the connection itself, which no deadline ends.
func drain(resp *http.Response) {
	var err error
	if resp.StatusCode != http.StatusSwitchingProtocols {
		_, err = io.CopyN(io.Discard, resp.Body, maxAnswer)
	}
	if closeErr := resp.Body.Close(); err != nil || closeErr != nil {
		return
	}
}

func parseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, errors.New("not a URL") // err holds the URL, and so perhaps a password
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, errors.New("write http://host/path or https://host/path")
	}
	return u, nil
}
