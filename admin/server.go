package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	"idemd/dedup"
	"idemd/event"
	"idemd/queue"
)

// Handler is one configured handler, as far as people ask about it.
type Handler struct {
	ID      string
	Name    string
	Effect  dedup.Effect
	Retain  time.Duration                 // for how long a settled run is kept
	Matches func(source, typ string) bool // it wants events of this source id and type
	Pause   func()                        // gives it nothing from now on
	Resume  func()                        // gives it events again

	ReplayLimit time.Duration                  // events older than this are not run again on request
	Concurrency int                            // attempts at one time
	Progress    func() dedup.Progress          // how far it has come
	Unrunnable  func(ev *event.Event) string   // why it may not run an event that it wants; "" when it may
	Room        func(ctx context.Context) bool // it takes events, no live one waits for it, and a worker is free
}

// Backend is what the server looks into.
type Backend struct {
	Store    dedup.Store
	Queue    *queue.Queue
	Handlers func() []Handler         // those that are configured now
	Sources  func() map[string]string // name -> id
	Logger   *slog.Logger

	Replays *Replays

	// Quarantine is set when there is no Store, because it is damaged: then only
	// Queue, Sources, Logger and Status are there, too. nil otherwise.
	Quarantine *Quarantine

	// Status gives what only the process knows: everything but Queue, Store and
	// the handlers' Open, which the server fills in.
	Status func(ctx context.Context) Status

	// Suppressions gives the deliveries that were not run because of the records
	// of runs, oldest first. nil when nobody writes them down.
	Suppressions func(ctx context.Context, runs []event.Key) ([]Suppression, error)

	// Windows judges the windows of every source. nil when nobody can.
	Windows func() Windows

	Janitor Janitor

	// Drops gives when a dead letter is dropped. nil when it never is.
	Drops func(rec *dedup.Record) dedup.Time

	// Output gives the end of what the command of a run's last attempt said. nil
	// where there are no commands.
	Output func(run string) (string, error)

	// Reload reads the configuration again. With dryRun it only says what that
	// would change.
	Reload func(ctx context.Context, dryRun bool) (Reload, error)

	// Explain says why handler (its id) did what it did with m. rec is nil where
	// the store has no record.
	Explain func(ctx context.Context, handler string, m queue.Message, rec *dedup.Record) Explanation
}

// Server answers the admin API. It is safe for concurrent use. Whoever can
// connect may do everything: the socket's file mode is the guard.
type Server struct {
	b     Backend
	mux   *http.ServeMux
	tails endless
}

// NewServer makes a Server for b, all of whose fields must be set that are not
// said to be nil.
func NewServer(b Backend) *Server {
	s := &Server{b: b, mux: http.NewServeMux()}
	b.Replays.s = s
	for pattern, fn := range s.routes() {
		if b.Quarantine != nil && !withoutClaims(pattern) {
			fn = s.refuse
		}
		s.mux.Handle(pattern, s.answer(fn))
	}
	s.mux.HandleFunc("GET /v1/tail", s.tail)
	s.mux.Handle("/", s.answer(func(r *http.Request) (any, error) {
		return nil, &Error{CodeNotFound, fmt.Sprintf("there is no %s %s", r.Method, r.URL.Path), "the program and the daemon may be of different versions"}
	}))
	return s
}

// HTTP gives the http.Server to serve the socket with. Its Shutdown ends the
// answers that would go on for ever.
func (s *Server) HTTP() *http.Server {
	srv := &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second, ConnContext: withPeer}
	srv.RegisterOnShutdown(s.tails.end)
	return srv
}

// endless keeps the answers that end only when somebody ends them.
type endless struct {
	mu      sync.Mutex
	ended   bool
	cancels map[int]context.CancelFunc
	next    int
}

// begin gives a context that end cancels, and what has to be called when the
// answer is over.
func (e *endless) begin(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended {
		cancel()
	}
	if e.cancels == nil {
		e.cancels = map[int]context.CancelFunc{}
	}
	id := e.next
	e.next++
	e.cancels[id] = cancel
	return ctx, func() {
		cancel()
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.cancels, id)
	}
}

func (e *endless) end() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended = true
	for _, cancel := range e.cancels {
		cancel()
	}
}

// endpoint answers one request with a value that becomes JSON.
type endpoint func(r *http.Request) (any, error)

func (s *Server) routes() map[string]endpoint {
	return map[string]endpoint{
		"GET /v1/status":             s.status,
		"GET /v1/events":             s.listEvents,
		"GET /v1/events/{event}":     s.showEvent,
		"GET /v1/events/{event}/why": s.why,
		"GET /v1/windows":            s.windows,
		"POST /v1/reload":            s.reload,
		"GET /v1/janitor":            s.janitorReports,
		"POST /v1/janitor/{task}":    s.runJanitor,
		"GET /v1/runs/{list}":        s.listRuns,
		"GET /v1/runs/{list}/{run}":  s.showRun,
		"POST /v1/runs/{list}":       s.resolveAll,
		"POST /v1/runs/{list}/{run}": s.resolveRun,

		"POST /v1/handlers/{handler}/{action}": s.actOnHandler,

		"GET /v1/batches":                    s.listBatches,
		"POST /v1/batches":                   s.newBatch,
		"GET /v1/replays":                    s.listReplays,
		"POST /v1/replays":                   s.startReplay,
		"POST /v1/replays/plan":              s.planReplay,
		"GET /v1/replays/{replay}":           s.showReplay,
		"POST /v1/replays/{replay}/{action}": s.actOnReplay,
	}
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// maxRequest bounds a request's body in bytes.
const maxRequest = 64 << 10

// answer is the one place where values and errors become responses.
func (s *Server) answer(fn endpoint) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxRequest)
		v, err := fn(r)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		s.write(w, r, http.StatusOK, v)
	})
}

func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	told := asError(err)
	if told.Code == CodeInternal && r.Context().Err() == nil {
		s.b.Logger.Error("admin request failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	s.write(w, r, told.Code.status(), errorBody{told})
}

func (s *Server) write(w http.ResponseWriter, r *http.Request, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		s.b.Logger.Error("admin answer cannot be encoded", "path", r.URL.Path, "error", err)
		status, body = http.StatusInternalServerError, []byte(`{"error":{"code":"internal","message":"the answer cannot be encoded"}}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if _, err := w.Write(append(body, '\n')); err != nil {
		s.b.Logger.Debug("admin answer was not read", "path", r.URL.Path, "error", err)
	}
}

func (s *Server) status(r *http.Request) (any, error) { return s.joinStatus(r.Context()) }

func (s *Server) joinStatus(ctx context.Context) (Status, error) {
	st := s.b.Status(ctx)
	if st.Warnings == nil {
		st.Warnings = []string{}
	}
	if s.b.Store != nil {
		st.Store = s.b.Store.Stats()
	}
	q, err := s.b.Queue.State(ctx)
	if err != nil {
		return Status{}, fmt.Errorf("read queue state: %w", err)
	}
	st.Queue = QueueStatus{
		FirstSeq: q.FirstSeq, LastSeq: q.LastSeq, Durable: q.Durable, Messages: q.Messages, Bytes: q.Bytes,
		MaxBytes: st.Queue.MaxBytes, Parked: q.Parked, Foreign: q.Foreign,
	}
	for i := range st.Handlers {
		h := &st.Handlers[i]
		if h.Open = st.Store.Open[h.ID]; h.Open == nil {
			h.Open = map[string]int{}
		}
	}
	return st, nil
}

// decode reads a request's JSON body into v.
func decode(r *http.Request, v any) error {
	dec := json.NewDecoder(r.Body)
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return &Error{CodeBadRequest, "the request is not what is expected: " + err.Error(), ""}
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return &Error{CodeBadRequest, "the request holds more than one value", ""}
	}
	return nil
}

// The bounds of one page.
const (
	defaultLimit = 50
	maxLimit     = 1000
)

func limitOf(r *http.Request) (int, error) {
	text := r.URL.Query().Get("limit")
	if text == "" {
		return defaultLimit, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxLimit {
		return 0, &Error{CodeBadRequest, fmt.Sprintf("limit %q is not a number from 1 to %d", text, maxLimit), ""}
	}
	return n, nil
}

func sinceOf(r *http.Request, fallback time.Duration) (time.Duration, error) {
	text := r.URL.Query().Get("since")
	if text == "" {
		return fallback, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, &Error{CodeBadRequest, fmt.Sprintf("since %q is not a duration", text), "write 24h"}
	}
	return d, nil
}

// handler gives a configured handler by id or name.
func (s *Server) handler(word string) (Handler, error) {
	for _, h := range s.b.Handlers() {
		if h.ID == word {
			return h, nil
		}
	}
	for _, h := range s.b.Handlers() {
		if h.Name == word {
			return h, nil
		}
	}
	return Handler{}, &Error{CodeNotFound, fmt.Sprintf("there is no handler %q", word), "see idemd status"}
}

// actOnHandler pauses or resumes a handler and gives its status.
func (s *Server) actOnHandler(r *http.Request) (any, error) {
	h, err := s.handler(r.PathValue("handler"))
	if err != nil {
		return nil, err
	}
	switch action := HandlerAction(r.PathValue("action")); action {
	case PauseHandler:
		h.Pause()
	case ResumeHandler:
		h.Resume()
	default:
		return nil, &Error{CodeNotFound, fmt.Sprintf("there is no action %q", action), "pause or resume"}
	}
	st, err := s.joinStatus(r.Context())
	if err != nil {
		return nil, err
	}
	for i := range st.Handlers {
		if st.Handlers[i].ID == h.ID {
			return st.Handlers[i], nil
		}
	}
	return nil, fmt.Errorf("find status of handler %s: it has none", h.ID)
}

// wanted lists the handlers that want events like ev.
func (s *Server) wanted(ev *event.Event) []Handler {
	var hs []Handler
	for _, h := range s.b.Handlers() {
		if h.Matches(ev.Source, ev.Type) {
			hs = append(hs, h)
		}
	}
	return hs
}
