package queue

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	streamEvents = "EVENTS"
	streamParked = "PARKED"

	minParkedBytes = 32 << 20
	maxStore       = 1 << 60          // the streams have their limits; with one here a budget could not shrink
	maxBudget      = 1 << 50          // far beyond any disk, far from overflow
	startTimeout   = 30 * time.Second // for the server to accept us once it has read its files
	maxPending     = 256 << 20        // what the server may hold for a slow reader: ourselves
	minDuplicates  = 100 * time.Millisecond
)

// metaIncarnation is where a stream keeps the incarnation that it belongs to.
const metaIncarnation = "idemd-incarnation"

// parkedBytes is the disk budget of the parked copies.
func parkedBytes(cfg Config) int64 { return max(cfg.MaxBytes/4, minParkedBytes) }

// startServer starts the embedded server; it reads the whole store before it
// returns. There is no port: the only way in is the process itself.
func startServer(cfg Config, syncAlways bool) (*server.Server, error) {
	opts := &server.Options{
		ServerName: "idemd", DontListen: true, NoSigs: true,
		JetStream: true, StoreDir: cfg.Dir, SyncAlways: syncAlways,
		JetStreamMaxStore:  maxStore,
		JetStreamMaxMemory: 1 << 20, // nothing is kept in memory; 0 would mean three quarters of it
		MaxPayload:         MaxMessage + headroom, MaxPending: maxPending,
	}
	srv, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("make server: %w", err)
	}
	log := &serverLog{log: cfg.Logger}
	srv.SetLoggerV2(log, false, false, false)
	srv.Start()
	if log.gaveUp() || !srv.JetStreamEnabled() || !srv.ReadyForConnections(startTimeout) {
		srv.Shutdown()
		srv.WaitForShutdown()
		return nil, fmt.Errorf("start server: %w", log.why())
	}
	return srv, nil
}

// serverLog carries the server's log to ours. Its notices are for people who
// run a server of their own.
type serverLog struct {
	log   *slog.Logger
	fatal atomic.Pointer[string]
}

func (l *serverLog) Noticef(format string, v ...any) { l.write(slog.LevelDebug, format, v) }
func (l *serverLog) Warnf(format string, v ...any)   { l.write(slog.LevelWarn, format, v) }
func (l *serverLog) Errorf(format string, v ...any)  { l.write(slog.LevelError, format, v) }
func (l *serverLog) Debugf(format string, v ...any)  { l.write(slog.LevelDebug, format, v) }
func (l *serverLog) Tracef(format string, v ...any)  { l.write(slog.LevelDebug, format, v) }

func (l *serverLog) Fatalf(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	l.fatal.Store(&text)
	l.write(slog.LevelError, format, v)
}

func (l *serverLog) write(level slog.Level, format string, v []any) {
	if l.log.Enabled(context.Background(), level) {
		l.log.Log(context.Background(), level, "nats server", "text", fmt.Sprintf(format, v...))
	}
}

func (l *serverLog) gaveUp() bool { return l.fatal.Load() != nil }

// why returns the last thing that the server gave up for.
func (l *serverLog) why() error {
	if text := l.fatal.Load(); text != nil {
		return errors.New(*text)
	}
	return errors.New("not ready in time")
}

// connect opens a connection inside the process.
func connect(srv *server.Server, name string, log *slog.Logger) (*nats.Conn, error) {
	nc, err := nats.Connect("", nats.InProcessServer(srv), nats.Name(name),
		nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond), nats.ReconnectJitter(0, 0),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				log.Warn("queue connection lost", "connection", name, "error", err)
			}
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			log.Warn("queue connection error", "connection", name, "error", err)
		}))
	if err != nil {
		return nil, fmt.Errorf("connect to server: %w", err)
	}
	return nc, nil
}

func eventsConfig(cfg Config) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: streamEvents, Subjects: []string{eventPrefix + ">"},
		Storage: jetstream.FileStorage, Replicas: 1, Retention: jetstream.LimitsPolicy,
		MaxBytes: cfg.MaxBytes, Discard: jetstream.DiscardNew, Compression: jetstream.NoCompression,
		Duplicates: minDuplicates, AllowDirect: true,
	}
}

func parkedConfig(cfg Config) jetstream.StreamConfig {
	c := eventsConfig(cfg)
	c.Name, c.Subjects = streamParked, []string{parkedPrefix + ">"}
	c.MaxBytes, c.MaxMsgsPerSubject = parkedBytes(cfg), 1
	return c
}

// openStreams opens the streams, or makes them at the first start. What it may
// not touch it has found out before it touches anything.
func openStreams(ctx context.Context, js jetstream.JetStream, cfg Config) (events, parked jetstream.Stream, err error) {
	for _, name := range []string{streamEvents, streamParked} {
		if err := checkStream(ctx, js, cfg, name); err != nil {
			return nil, nil, fmt.Errorf("open stream %s: %w", name, err)
		}
	}
	if events, err = ensureStream(ctx, js, cfg, eventsConfig(cfg)); err != nil {
		return nil, nil, err
	}
	parked, err = ensureStream(ctx, js, cfg, parkedConfig(cfg))
	return events, parked, err
}

// checkStream says whether the stream may be opened, or made. None is made in
// place of one that is on disk and was not recovered, or that was lost; and none
// of another data directory is taken over. A first start that was cut short
// leaves streams under an incarnation that nobody wrote down: as long as they
// are empty they are anybody's.
func checkStream(ctx context.Context, js jetstream.JetStream, cfg Config, name string) error {
	st, err := js.Stream(ctx, name)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound) && hasMessages(cfg.Dir, name):
		return errors.New("it is on disk but was not recovered; restore the directory from a backup")
	case errors.Is(err, jetstream.ErrStreamNotFound) && cfg.Incarnation != "" && !cfg.First:
		return ErrAbsent
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return nil
	case err != nil:
		return err
	}
	info := st.CachedInfo()
	if cfg.Incarnation == "" || info.Config.Metadata[metaIncarnation] == cfg.Incarnation || cfg.First && info.State.Msgs == 0 {
		return nil
	}
	return ErrForeign
}

// ensureStream opens the stream with the settings and the incarnation of now, or
// makes it.
func ensureStream(ctx context.Context, js jetstream.JetStream, cfg Config, want jetstream.StreamConfig) (jetstream.Stream, error) {
	st, err := js.Stream(ctx, want.Name)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		want.Metadata = incarnationLabel(nil, cfg.Incarnation)
		st, err = js.CreateStream(ctx, want)
	case err == nil:
		is := st.CachedInfo().Config
		want.Metadata = incarnationLabel(is.Metadata, cfg.Incarnation)
		if is.MaxBytes != want.MaxBytes || is.Metadata[metaIncarnation] != want.Metadata[metaIncarnation] {
			st, err = js.UpdateStream(ctx, want)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open stream %s: %w", want.Name, err)
	}
	return st, nil
}

// incarnationLabel gives a stream's metadata with the incarnation in it.
func incarnationLabel(metadata map[string]string, incarnation string) map[string]string {
	if incarnation == "" {
		return metadata
	}
	labelled := make(map[string]string)
	maps.Copy(labelled, metadata)
	labelled[metaIncarnation] = incarnation
	return labelled
}

// hasMessages reports whether the directory holds messages of the stream.
func hasMessages(dir, stream string) bool {
	msgs := streamDir(dir, stream)
	files, err := os.ReadDir(msgs)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	for _, f := range files {
		if filepath.Ext(f.Name()) != ".blk" {
			continue
		}
		if st, err := f.Info(); err != nil || st.Size() > 0 {
			return true
		}
	}
	return false
}
