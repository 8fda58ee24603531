package app

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"idemd/event"
	"idemd/receiver"
)

// SampleEvent says what to send to a source.
type SampleEvent struct {
	Source  string // its name; empty: the first one
	Payload []byte // nil: one that the scheme makes
	ID      string // of the event, where the scheme takes it from outside the payload; empty: a new one
	Type    string // where the scheme takes it from outside the payload; empty: the source's default
}

// Sample is an event that can be sent to a source, signed as its platform would.
type Sample struct {
	Source  string // the source's name
	EventID string // evt_...; empty when the event has no identity: each sending is a new one
	Type    string
	config  receiver.SourceConfig
	payload []byte
	id      string
}

// Sent is the answer to a Sample.
type Sent struct {
	Status int
	Body   string        // at most its first 200 bytes
	Took   time.Duration // until the answer was read
}

// NewSample reads the source's secrets and makes an event for it.
func (c *Config) NewSample(e SampleEvent) (*Sample, error) {
	i := 0
	if e.Source != "" {
		i = slices.IndexFunc(c.Sources, func(s SourceConfig) bool { return s.Name == e.Source })
	}
	if i < 0 {
		var names []string
		for j := range c.Sources {
			names = append(names, c.Sources[j].Name)
		}
		return nil, &OperatorError{What: fmt.Sprintf("there is no source %q", e.Source), Hint: suggestName(e.Source, names)}
	}
	var b builder
	cfg := b.source(c, i)
	if err := b.err(c); err != nil {
		return nil, err
	}
	if e.Type != "" {
		if cfg.Scheme == schemeWeCom {
			return nil, &OperatorError{
				What: "the type of a " + cfg.Scheme + " event stands in its payload", Hint: "write the payload into a file and give --file",
			}
		}
		cfg.DefaultType = e.Type
	}
	s := &Sample{
		Source: cfg.Name, config: cfg, payload: e.Payload,
		id: cmp.Or(e.ID, "sample-"+strings.ToLower(rand.Text()[:10])),
	}
	if s.payload == nil {
		var err error
		if s.payload, err = receiver.Sample(cfg, s.id); err != nil {
			return nil, err
		}
	}
	return s, s.identify()
}

// identify lets a receiver of the same configuration say what event this is.
func (s *Sample) identify() error {
	var got *event.Event
	recv, err := receiver.New(receiver.Config{
		Sources: []receiver.SourceConfig{s.config},
		Publish: func(_ context.Context, ev *event.Event) error { got = ev; return nil },
	})
	if err != nil {
		return err
	}
	recv.SetReady(receiver.StateReady)
	req, err := s.request(context.Background(), "http://sample")
	if err != nil {
		return err
	}
	answer := &blindWriter{header: http.Header{}}
	recv.NewServer().Handler.ServeHTTP(answer, req)
	if got == nil {
		return &OperatorError{
			What: fmt.Sprintf("the source would refuse this event with status %d", answer.status),
			Hint: "look at the payload; idemd check tells whether the configuration is right",
		}
	}
	s.Type = got.Type
	if got.Identity.Kind != event.KindUnkeyed {
		s.EventID = got.ID()
	}
	return nil
}

func (s *Sample) request(ctx context.Context, base string) (*http.Request, error) {
	signed, err := receiver.Sign(s.config, s.payload, s.id, time.Now())
	if err != nil {
		return nil, err
	}
	return signed.Request(ctx, base)
}

// maxSentBody is how much of an answer is shown.
const maxSentBody = 200

// Send signs the event anew and sends it once to the receiver at base
// ("http://127.0.0.1:8420").
func (s *Sample) Send(ctx context.Context, client *http.Client, base string) (sent Sent, err error) {
	req, err := s.request(ctx, base)
	if err != nil {
		return Sent{}, err
	}
	began := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		return Sent{}, err
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxSentBody))
	if err == nil {
		_, err = io.Copy(io.Discard, resp.Body)
	}
	return Sent{Status: resp.StatusCode, Body: string(body), Took: time.Since(began)}, err
}

// blindWriter keeps of an answer only its status.
type blindWriter struct {
	header http.Header
	status int
}

func (w *blindWriter) Header() http.Header { return w.header }

func (w *blindWriter) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
}

func (w *blindWriter) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return len(b), nil
}
