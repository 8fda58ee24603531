// Package app is the process: configuration file, wiring, lifecycle. It is the
// only package that knows all others.
package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"idemd/admin"
	"idemd/consumer"
	"idemd/dedup/boltstore"
	"idemd/dedup/ledger"
	"idemd/event"
	"idemd/janitor"
	"idemd/queue"
	"idemd/receiver"
)

// Options are what the command line adds to the configuration.
type Options struct {
	Logger  *slog.Logger
	Version string
	Fault   func(point string) // crash points of tests; nil in production
	Ready   func(addr string)  // called once requests are accepted, with the receiver's address
	Systemd Systemd            // what a service manager gave; zero when there is none

	// VerifyProgram is what verifies a suspect file of the claim store in a process
	// of its own: program and arguments, to which the path is added. Empty: none.
	VerifyProgram []string

	Reload <-chan os.Signal // asks for the configuration to be read again; nil: nobody does

	// Abandon gives up claims that are damaged: a new store takes their place, and
	// of the events of this last time it is looked again what they are. 0: the
	// claims are not given up.
	Abandon time.Duration

	Restored bool // the operator says that the data directory is an older state of itself
	Moved    bool // the operator says that it was stopped cleanly and moved, and that there is no other
}

// App is one idemd process: New starts it up to the point where events could be
// taken, Run takes them.
type App struct {
	cfg     *Config // that of the start; live has what a reload may change
	opts    Options
	log     *slog.Logger
	began   time.Time
	setup   atomic.Pointer[setup]
	dir     *dataDir
	addr    string // the receiver's
	recv    *receiver.Receiver
	drain   func(context.Context) error // ends the receiver; may be called twice
	socket  string                      // path of the admin API's
	store   *boltstore.Store
	queue   *queue.Queue
	ledger  *ledger.Ledger
	side    *consumer.SideLog
	orphans int // processes that an earlier idemd had left running, killed at this start
	past    past
	disk    *diskWatch
	clock   clockWatch
	history history
	janitor *janitor.Janitor
	replays *admin.Replays
	reloads *reloads
	refuge  *OperatorError // why this is a quarantine; nil when it is none
	failed  chan error     // the first error that ends the process

	closeAdmin func(context.Context) error
	unwatch    context.CancelFunc
	running    sync.WaitGroup
	down       teardown
}

// New does, in this order, what has to be done before events are taken. The
// order is a guarantee, and the steps undo themselves in reverse:
//
// the data directory is locked before anything in it is read; the receiver
// listens early, so that platforms are refused in their source's way instead of
// not being heard; the claim store's new epoch is durable before any grant; the
// queue is synced before its last sequence counts as durable; runs of dead
// epochs are settled before any consumer can ask for them.
func New(ctx context.Context, cfg *Config, opts Options) (*App, error) {
	a := &App{
		cfg: cfg, opts: opts, log: opts.Logger, began: time.Now(), failed: make(chan error, 1), reloads: newReloads(),
		closeAdmin: func(context.Context) error { return nil }, unwatch: func() {},
	}
	if a.log == nil {
		a.log = slog.New(slog.DiscardHandler)
	}
	a.setup.Store(&setup{cfg: cfg})
	if err := a.open(ctx); err != nil {
		err = a.noRoom(err)
		return nil, errors.Join(err, a.stop())
	}
	return a, nil
}

func (a *App) open(ctx context.Context) error {
	sources, err := a.cfg.ReceiverSources()
	if err != nil {
		return err
	}
	specs, digests, err := a.cfg.specs(a.log)
	if err != nil {
		return err
	}
	a.setup.Store(&setup{cfg: a.cfg, specs: specs, digests: digests})
	if err := a.lockDir(); err != nil {
		return err
	}
	if err := a.makeRoom(); err != nil {
		return err
	}
	a.endOrphans(ctx)
	if err := a.listen(sources); err != nil {
		return err
	}
	if err := a.openStore(ctx); err != nil {
		if quarantines(err) && a.dir.hasQueue() && !a.dir.first() {
			return a.openQuarantine(ctx, err)
		}
		return err
	}
	return a.openRuns(ctx)
}

// openRuns opens everything that needs the claims.
func (a *App) openRuns(ctx context.Context) (err error) {
	if err := a.openQueue(ctx); err != nil {
		return err
	}
	if err := a.sealDir(ctx); err != nil {
		return err
	}
	if err := a.openSideLog(ctx); err != nil {
		return err
	}
	if err := consumer.Recover(ctx, a.recovery()); err != nil {
		return fmt.Errorf("recover claims: %w", err)
	}
	if err := a.beginAgain(ctx); err != nil {
		return err
	}
	a.retire(ctx, a.cfg.Retire)
	a.openLedger(ctx)
	// Systemd's patience is not for the time that the last runs take to end.
	a.down.onStop("watchdog", func(context.Context) error { a.unwatch(); return nil })
	// The command line is answered until the last run has ended.
	a.down.onStop("admin", func(ctx context.Context) error { return a.closeAdmin(ctx) })
	if err := a.openPools(ctx); err != nil {
		return err
	}
	if a.disk, err = newDiskWatch(a); err != nil {
		return err
	}
	if a.janitor, err = a.newJanitor(); err != nil {
		return err
	}
	if err := a.openReplays(); err != nil {
		return err
	}
	if err := a.settlePast(); err != nil {
		return err
	}
	if err := a.listenAdmin(); err != nil {
		return err
	}
	// It was the first to come, and is the first to go: nothing new may reach a
	// queue that closes.
	a.down.onStop("receiver's intake", a.drain)
	return nil
}

// lockDir makes the data directory this process's own.
func (a *App) lockDir() (err error) {
	if a.socket, err = a.cfg.SocketPath(); err != nil {
		return err
	}
	if a.dir, err = openDataDir(a.cfg.DataDir); err != nil {
		return err
	}
	a.down.onStop("data directory", func(context.Context) error { return a.dir.unlock() })
	if admin.Answers(a.socket) {
		return &OperatorError{
			What: "another idemd is running on this data directory, though its LOCK is free: the file was deleted or replaced", Where: a.dir.path,
			Hint: "stop that idemd first; LOCK is never stale, leave it alone",
		}
	}
	return nil
}

// endOrphans ends commands that a dead idemd has left running, before their runs
// are settled. What cannot be ended is said, and no reason not to start.
func (a *App) endOrphans(ctx context.Context) {
	commands := a.cfg.commands()
	n, err := commands.KillOrphans(ctx)
	if err = errors.Join(err, commands.Sweep(time.Now())); err != nil {
		a.log.Warn("commands of an earlier process not dealt with", "error", err)
	}
	a.orphans = n
	if n > 0 {
		a.log.Warn("commands of an earlier process were still running and are killed", "processes", n)
	}
}

// listen binds the receiver's address. Until Run, requests are refused as each
// source's on_refuse says.
func (a *App) listen(sources []receiver.SourceConfig) error {
	recv, err := receiver.New(receiver.Config{
		Sources: sources, InFlight: a.cfg.Receiver.InFlight, Readers: a.cfg.Receiver.Readers,
		BodyMemory: int64(a.cfg.Receiver.BodyMemory), Retention: a.cfg.Windows.Cold.Std(),
		Logger: a.log.With("component", "receiver"),
		Publish: func(ctx context.Context, ev *event.Event) error {
			_, err := a.queue.Publish(ctx, ev)
			return err
		},
	})
	if err != nil {
		return err
	}
	l := a.opts.Systemd.Listener
	if l == nil {
		if l, err = net.Listen("tcp", a.cfg.Receiver.Listen); err != nil {
			return &OperatorError{
				What: "cannot listen for callbacks", Where: a.cfg.Receiver.Listen, Err: err,
				Hint: "stop what uses the address (ss -ltnp), or set [receiver] listen to a free one",
			}
		}
	}
	a.recv, a.addr = recv, l.Addr().String()
	a.reloads.sources = sources
	closeServer := a.serve("receiver", recv.NewServer(), l)
	a.drain = func(ctx context.Context) error {
		recv.SetReady(receiver.StateDraining)
		return closeServer(ctx)
	}
	a.down.onStop("receiver", a.drain)
	return nil
}

// serve runs an HTTP server until the function that it returns has ended it.
func (a *App) serve(name string, srv *http.Server, l net.Listener) (closeServer func(context.Context) error) {
	a.running.Go(func() {
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			a.fail(fmt.Errorf("serve %s: %w", name, err))
		}
	})
	return func(ctx context.Context) error {
		if err := srv.Shutdown(ctx); err != nil {
			return errors.Join(err, srv.Close())
		}
		return nil
	}
}

func (a *App) listenAdmin() error {
	l, err := admin.Listen(a.socket)
	if err != nil {
		return &OperatorError{
			What: "cannot listen for the command line", Where: a.socket, Err: err,
			Hint: "the directory must be writable for the user that runs idemd, and nothing else may stand at this path",
		}
	}
	a.closeAdmin = a.serve("admin", admin.NewServer(a.backend()).HTTP(), l)
	return nil
}

// Run takes events until ctx ends, or until something fails that cannot be
// mended; then it stops everything in order, within the longest handler timeout
// and five seconds more, 90 seconds at most.
func (a *App) Run(ctx context.Context) error {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	if a.refuge == nil {
		a.runHandlers(work)
	} else {
		a.watchDisk(work)
		a.tell("STATUS=" + a.refuge.Error() + ": events are stored, nothing runs")
	}
	a.log.Info("ready", "addr", a.addr, "data_dir", a.cfg.DataDir, "took", time.Since(a.began).Round(time.Millisecond))
	if a.opts.Ready != nil {
		a.opts.Ready(a.addr)
	}
	a.tell(notifyReady)
	watching, unwatch := context.WithCancel(work)
	a.unwatch = unwatch
	a.running.Go(func() { a.watch(watching) })
	var storeFailed <-chan error
	if a.store != nil {
		storeFailed = a.store.Failed()
	}
	var err error
	select {
	case <-ctx.Done():
		a.log.Info("stopping")
	case err = <-a.failed:
	case err = <-a.queue.Failed():
	case err = <-storeFailed:
	}
	a.tell(notifyStopping)
	if err != nil {
		a.log.Error("stopping after a failure", "error", err)
		return errors.Join(err, a.stopWithin(stopFailed))
	}
	return a.stop()
}

// runHandlers lets everything work that needs the claims.
func (a *App) runHandlers(work context.Context) {
	trimming, endTrimming := context.WithCancel(work)
	a.running.Go(func() { a.trim(trimming) })
	a.down.onStop("memory", func(context.Context) error { endTrimming(); return nil })
	for _, pool := range a.live().pools {
		a.runPool(work, pool)
	}
	a.watchDisk(work)
	a.runMarks(work)
	a.runJanitor(work)
	a.runReplays(work)
	a.runSideLog(work)
	a.runReloads(work)
}

// fail ends Run with err, unless an earlier error already does.
func (a *App) fail(err error) {
	select {
	case a.failed <- err:
	default:
	}
}
