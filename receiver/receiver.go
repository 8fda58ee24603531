// Package receiver is where platforms call: it reads a request within limits,
// lets the source's Scheme authenticate and identify it, has the event stored,
// and only then answers what the platform wants to hear. It does nothing else:
// no handler runs here and no duplicate is decided here.
//
// A Scheme is one platform's protocol. Three are here: token and hmac, for
// senders that send a secret or sign with one, and wecom. XML payloads become JSON by one mapping, see
// document.appendJSON; JSON payloads are delivered byte for byte.
//
// What cannot be stored is refused in the way that makes the platform call
// again, see SourceConfig.OnRefuse. Nothing is written for a request that is
// not authenticated.
//
// Headers by which a request could ask for a dedupe window, a debug dump or a
// batch are not looked at: that is for the configuration and the operator.
package receiver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path"
	"strings"
	"sync/atomic"
	"time"

	"idemd/event"
)

// Defaults and limits of Config.
const (
	DefaultInFlight    = 512
	DefaultReaders     = 4096
	DefaultBodyMemory  = 64 << 20       // bytes
	MinBodyMemory      = 4 * MaxMaxBody // bytes
	DefaultReadTimeout = 4 * time.Second
	MaxReadTimeout     = 5 * time.Second // platforms wait no longer
)

const (
	healthPath = "/healthz"
	readyPath  = "/readyz"
)

// Config is what a Receiver is made of.
type Config struct {
	Sources []SourceConfig

	// Publish stores an event and returns when it is on stable storage. An error
	// says that it may not be. It must be safe for concurrent use and keep to ctx.
	Publish func(ctx context.Context, ev *event.Event) error

	InFlight    int              // requests at a time whose bodies are here; default DefaultInFlight
	Readers     int              // bodies being read at a time; default DefaultReaders
	BodyMemory  int64            // bytes of all bodies being read or in flight; default DefaultBodyMemory
	ReadTimeout time.Duration    // for one request's headers, and for its body; default DefaultReadTimeout
	Retention   time.Duration    // MaxAge of sources that do not say; default DefaultMaxAge
	Logger      *slog.Logger     // default: no log
	Now         func() time.Time // wall clock for ages and Event.Received; default time.Now
}

// State says whether a Receiver takes events.
type State int32

// The states. A Receiver begins with StateStarting.
const (
	StateStarting State = iota // the store or the queue is not open yet
	StateReady                 // takes events
	StateBlocked               // something that passes by itself forbids it, such as a full disk
	StateDraining              // the process is stopping
)

// Receiver serves the callback URLs of all sources. It is safe for concurrent
// use. It owns no goroutine.
type Receiver struct {
	cfg      Config
	table    atomic.Pointer[table]
	state    atomic.Int32
	blocked  atomic.Pointer[string] // why, for /readyz; nil: nobody said
	inFlight atomic.Int64
	reading  atomic.Int64 // bodies
	bodies   atomic.Int64 // bytes of memory that bodies take
}

// table is the sources at work and the URLs that lead to them. It does not
// change: SetSources puts another in its place.
type table struct {
	sources []*source
	mux     *http.ServeMux
}

// source is a SourceConfig at work.
type source struct {
	id      string
	scheme  Scheme
	rules   event.FingerprintRules
	maxBody int64
	hold    bool
	*tally
}

// tally is what a source keeps while its configuration changes.
type tally struct {
	holding atomic.Int64
	counters
	logged logLimit
}

// New makes a Receiver in StateStarting. Its error joins all problems of the
// sources.
func New(cfg Config) (*Receiver, error) {
	cfg.InFlight = cmp.Or(cfg.InFlight, DefaultInFlight)
	cfg.Readers = cmp.Or(cfg.Readers, DefaultReaders)
	cfg.BodyMemory = cmp.Or(cfg.BodyMemory, DefaultBodyMemory)
	cfg.ReadTimeout = cmp.Or(cfg.ReadTimeout, DefaultReadTimeout)
	cfg.Retention = cmp.Or(cfg.Retention, DefaultMaxAge)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Publish == nil {
		return nil, errors.New("make receiver: Publish is nil")
	}
	if cfg.InFlight < 0 || cfg.Readers < 0 || cfg.BodyMemory < MinBodyMemory || cfg.ReadTimeout < 0 || cfg.ReadTimeout > MaxReadTimeout {
		return nil, fmt.Errorf("make receiver: a bound is out of range: %d in flight, %d readers, %d bytes of bodies, read timeout %s",
			cfg.InFlight, cfg.Readers, cfg.BodyMemory, cfg.ReadTimeout)
	}
	rc := &Receiver{cfg: cfg}
	if err := rc.SetSources(cfg.Sources, cfg.Retention); err != nil {
		return nil, fmt.Errorf("make receiver: %w", err)
	}
	return rc, nil
}

// SetSources serves these sources from now on, and no others; retention is the
// MaxAge of those that do not say. A request that is being read goes on with the
// source that it began with, so that none is lost; a source whose id stays keeps
// what it has counted. The error joins all problems, and changes nothing. It is
// not to be called from two goroutines at one time.
func (rc *Receiver) SetSources(sources []SourceConfig, retention time.Duration) error {
	problems := Validate(sources)
	if len(problems) == 0 {
		problems = ValidateSecrets(sources)
	}
	if len(problems) > 0 {
		return joinProblems(problems)
	}
	tallies := map[string]*tally{}
	if old := rc.table.Load(); old != nil {
		for _, s := range old.sources {
			tallies[s.id] = s.tally
		}
	}
	t := &table{mux: http.NewServeMux()}
	t.mux.HandleFunc("GET "+healthPath, func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, "ok\n") })
	t.mux.HandleFunc("GET "+readyPath, rc.ready)
	for _, c := range sources {
		if c.Scheme == "wecom" {
			c.MaxAge = cmp.Or(c.MaxAge, retention)
		}
		s := newSource(c)
		if s.tally = tallies[s.id]; s.tally == nil {
			s.tally = &tally{}
		}
		t.sources = append(t.sources, s)
		rc.route(t.mux, c.EffectivePath(), s)
	}
	rc.table.Store(t)
	return nil
}

func joinProblems(problems []Problem) error {
	errs := make([]error, len(problems))
	for i, p := range problems {
		errs[i] = p
	}
	return errors.Join(errs...)
}

// newSource makes a source whose configuration has no problems.
func newSource(c SourceConfig) *source {
	scheme, _ := schemes[c.Scheme].make(c)
	return &source{
		id:      c.EffectiveID(),
		scheme:  scheme,
		rules:   event.NewFingerprintRules(c.volatile()),
		maxBody: c.maxBody(),
		hold:    c.onRefuse() == OnRefuseHold,
	}
}

// route lets a source's URL lead to it.
func (rc *Receiver) route(mux *http.ServeMux, pattern string, s *source) {
	if strings.HasSuffix(pattern, "/") {
		pattern += "{$}"
	}
	mux.HandleFunc("POST "+pattern, func(w http.ResponseWriter, r *http.Request) { rc.post(s, w, r) })
	if ch, ok := s.scheme.(Challenger); ok {
		mux.HandleFunc("GET "+pattern, func(w http.ResponseWriter, r *http.Request) { rc.challenge(s, ch, w, r) })
	}
}

// ServeHTTP serves the sources' URLs, /healthz and /readyz.
func (rc *Receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rc.dropRest(w, drainFor) // until somebody wants the body
	if p := r.URL.Path; path.Clean(p) != strings.TrimSuffix(p, "/") && p != "/" {
		// The mux would redirect, which a platform may take for success.
		writeText(w, http.StatusNotFound, "not found\n")
		return
	}
	rc.table.Load().mux.ServeHTTP(w, r)
}

// NewServer makes the HTTP server that a Receiver wants to be behind: headers
// and idle connections have deadlines, bodies get theirs from the Receiver, and
// an answer may take as long as a request may be held.
func (rc *Receiver) NewServer() *http.Server {
	return &http.Server{
		Handler:           rc,
		ReadHeaderTimeout: rc.cfg.ReadTimeout,
		IdleTimeout:       75 * time.Second,
		MaxHeaderBytes:    32 << 10,
		ErrorLog:          slog.NewLogLogger(rc.cfg.Logger.Handler(), slog.LevelDebug),
	}
}

// SetReady changes whether events are taken. Requests that were let in before
// go on.
func (rc *Receiver) SetReady(s State) { rc.state.Store(int32(s)) }

// Block is SetReady with StateBlocked. What why says, /readyz tells everybody.
func (rc *Receiver) Block(why string) {
	rc.blocked.Store(&why)
	rc.SetReady(StateBlocked)
}

// State gives what SetReady last set.
func (rc *Receiver) State() State { return State(rc.state.Load()) }

func (rc *Receiver) ready(w http.ResponseWriter, _ *http.Request) {
	var why string
	switch rc.State() {
	case StateReady:
		writeText(w, http.StatusOK, "ok\n")
		return
	case StateBlocked:
		why = "blocked"
		if said := rc.blocked.Load(); said != nil {
			why = *said
		}
	case StateDraining:
		why = "stopping"
	default:
		why = "starting"
	}
	writeText(w, http.StatusServiceUnavailable, "not ready: "+why+"\n")
}

// Stats gives what every source has counted since it was first served, in the
// order in which SetSources got them.
func (rc *Receiver) Stats() []SourceStats {
	sources := rc.table.Load().sources
	all := make([]SourceStats, 0, len(sources))
	for _, s := range sources {
		all = append(all, s.stats(s.id, s.holding.Load()))
	}
	return all
}

// InFlight is the number of requests that are being worked on: without held
// ones, and without those whose body is not all here.
func (rc *Receiver) InFlight() int64 { return rc.inFlight.Load() }

// Reading is the number of requests whose bodies are being read.
func (rc *Receiver) Reading() int64 { return rc.reading.Load() }

// BodyBytes is the memory that bodies take, without those of held requests.
func (rc *Receiver) BodyBytes() int64 { return rc.bodies.Load() }
