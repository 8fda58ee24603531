package app

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"idemd/admin"
	"idemd/consumer"
	"idemd/receiver"
)

// ReceiverSources reads the sources' secrets and gives the receiver's
// configuration. It returns a *ConfigError with every secret that cannot be
// read or is none.
func (c *Config) ReceiverSources() ([]receiver.SourceConfig, error) {
	var b builder
	all := make([]receiver.SourceConfig, len(c.Sources))
	for i := range c.Sources {
		all[i] = b.source(c, i)
	}
	if len(b.problems) == 0 {
		for _, p := range receiver.ValidateSecrets(all) {
			b.add(c, fmt.Sprintf("source[%d].%s", p.Source, p.Field), p.What, p.Hint)
		}
	}
	return all, b.err(c)
}

// specs reads the handlers' secrets and gives the consumer's configuration. The
// handlers of kind log write to logger. Two handlers with the same digest are made
// of the same keys, secrets and files. It returns a *ConfigError with everything
// that is wrong.
func (c *Config) specs(logger *slog.Logger) (_ []consumer.Spec, digests []digest, err error) {
	var b builder
	ids := map[string]string{}
	for i := range c.Sources {
		ids[c.Sources[i].Name] = c.Sources[i].ID
	}
	var all []consumer.Spec
	for i := range c.Handlers {
		h := &c.Handlers[i]
		table := fmt.Sprintf("handler[%d]", i)
		b.read = sha256.New()
		spec := consumer.Spec{
			ID: h.ID, Name: h.Name, Types: h.Types,
			StoreUnavailable: consumer.StoreUnavailable(h.StoreUnavailable),
			Timeout:          h.Timeout.Std(), Concurrency: h.Concurrency, MaxRate: float64(h.MaxRate),
			SerializeBy: h.SerializeBy, HoldOrder: h.HoldOrder,
			OnMismatch:  consumer.OnMismatch(h.OnMismatch),
			OnDuplicate: c.duplicatePolicy(h), DuplicatesOnly: c.duplicatesOnly(h),
			Retain: h.Cold.Std(), ReplayLimit: c.Windows.ReplayLimit.Std(),
		}
		spec.Retry = []time.Duration{}
		for _, d := range h.Retry {
			spec.Retry = append(spec.Retry, d.Std())
		}
		for _, name := range h.Sources {
			spec.Sources = append(spec.Sources, ids[name])
		}
		if err := spec.Effect.UnmarshalText([]byte(h.Effect)); err != nil {
			b.add(c, table+".effect", err.Error(), "")
		}
		switch h.Kind {
		case kindHTTP:
			spec.Handler = b.http(c, table, h)
		case kindExec:
			spec.Handler = b.exec(c, table, h)
		default:
			spec.Handler = consumer.NewLog(logger)
		}
		if spec.Handler != nil { // else its problems are there already
			for _, p := range spec.Validate() {
				b.add(c, table+"."+p.Field, p.Text, "")
			}
		}
		all = append(all, spec)
		digests = append(digests, b.digest(h, &spec))
	}
	if err := b.err(c); err != nil {
		closeHandlers(all)
		return nil, nil, err
	}
	return all, digests, nil
}

// digest is one of everything that a handler is made of.
type digest [sha256.Size]byte

func (b *builder) digest(h *HandlerConfig, spec *consumer.Spec) (d digest) {
	made := *spec
	made.Handler = nil
	// What is printed is only what decides: the secrets are in b.read.
	fmt.Fprintf(b.read, "%#v %#v", *h, made)
	b.read.Sum(d[:0])
	return d
}

// closeHandlers gives up handlers that nobody has called or will call. They hold
// nothing that could fail to be given back: what a Close ends is idle connections.
func closeHandlers(specs []consumer.Spec) {
	for i := range specs {
		if c, ok := specs[i].Handler.(io.Closer); ok {
			_ = c.Close()
		}
	}
}

// builder collects what is wrong while secrets are read.
type builder struct {
	problems []Problem
	read     hash.Hash // of what was read beside the configuration for one handler; nil for a source
}

// note takes in what was read.
func (b *builder) note(what []byte) {
	if b.read != nil {
		fmt.Fprintf(b.read, "%d ", len(what)) // so that it cannot run into what follows
		b.read.Write(what)
	}
}

func (b *builder) add(c *Config, path, what, hint string) {
	b.problems = append(b.problems, Problem{Path: path, Line: c.line(path), What: what, Hint: hint})
}

func (b *builder) err(c *Config) error {
	if len(b.problems) == 0 {
		return nil
	}
	return &ConfigError{File: c.file, Problems: c.inOrder(b.problems)}
}

func (b *builder) resolve(c *Config, path string, s Secret) string {
	text, err := s.Resolve(c.dir())
	if err != nil {
		hint := "idemd's service must have it; a shell may not"
		if errors.Is(err, fs.ErrPermission) {
			hint = "let the user that runs idemd read it"
		}
		b.add(c, path, "cannot be read: "+err.Error(), hint)
	}
	b.note([]byte(text))
	return text
}

func (b *builder) source(c *Config, i int) receiver.SourceConfig {
	s := &c.Sources[i]
	r := s.unresolved()
	r.Token, r.EncodingAESKey, r.Secret = nil, nil, nil
	for _, k := range s.secrets() {
		k.addTo(&r, b.resolve(c, fmt.Sprintf("source[%d].%s", i, k.key), k.secret))
	}
	return r
}

func (b *builder) http(c *Config, table string, h *HandlerConfig) consumer.Handler {
	before := len(b.problems)
	cfg := consumer.HTTPConfig{
		URL: h.URL, Answers: h.Answers, Proxy: h.Proxy, Concurrency: h.Concurrency, Headers: map[string]string{},
		TrustWait: h.TrustRetryAfter, TLS: b.tls(c, table, h),
	}
	for _, name := range slices.Sorted(maps.Keys(h.Headers)) {
		cfg.Headers[name] = b.resolve(c, join(table+".headers", name), h.Headers[name])
	}
	if !h.Secret.IsZero() {
		cfg.Secret = b.resolve(c, table+".secret", h.Secret)
	}
	handler, err := consumer.NewHTTP(cfg)
	if err != nil {
		if len(b.problems) == before {
			b.add(c, table, err.Error(), "")
		}
		return nil
	}
	return handler
}

func (b *builder) exec(c *Config, table string, h *HandlerConfig) consumer.Handler {
	handler, err := consumer.NewExec(consumer.ExecConfig{Command: h.Command, Dir: c.dir(), Answers: h.Answers, Notes: c.commands()})
	if err != nil {
		b.add(c, table+".command", err.Error(), "the user that runs idemd must be able to run the program")
		return nil
	}
	return handler
}

// commands is where commands leave what outlives the process that runs them.
func (c *Config) commands() *consumer.Commands {
	return consumer.NewCommands(filepath.Join(c.DataDir, "commands"))
}

// maxQueue is the default bound of the queue on a large disk.
const maxQueue = 20 * GiB

// QueueBytes is the queue's disk budget: [queue] max_bytes, else the smaller of
// 20 GiB and half of the disk that data_dir is on.
func (c *Config) QueueBytes() (int64, error) {
	if c.Queue.MaxBytes > 0 {
		return int64(c.Queue.MaxBytes), nil
	}
	disk, err := c.diskBytes()
	return min(int64(maxQueue), disk/2), err
}

const (
	maxBallast     = 64 * MiB
	defaultReserve = 512 * MiB
)

// ReserveBytes is how much of the disk must be free for events to be taken:
// [queue] reserve, else the larger of 512 MiB and 5 % of the disk, but never more
// than a quarter of it.
func (c *Config) ReserveBytes() (int64, error) {
	if c.Queue.Reserve > 0 {
		return int64(c.Queue.Reserve), nil
	}
	disk, err := c.diskBytes()
	return min(max(int64(defaultReserve), disk/20), disk/4), err
}

// ballastBytes is what the claim store keeps for outcomes on a full disk.
func (c *Config) ballastBytes() (int64, error) {
	disk, err := c.diskBytes()
	if err != nil {
		return 0, err
	}
	queue, err := c.QueueBytes()
	return min(int64(maxBallast), disk/16, queue/16), err
}

// diskBytes is the size of the disk that data_dir is on, or will be.
func (c *Config) diskBytes() (int64, error) {
	for dir := c.DataDir; ; dir = filepath.Dir(dir) {
		var st unix.Statfs_t
		err := unix.Statfs(dir, &st)
		if err == nil {
			return int64(st.Blocks * uint64(st.Bsize)), nil
		}
		if !errors.Is(err, fs.ErrNotExist) || filepath.Dir(dir) == dir {
			return 0, &OperatorError{
				What: "cannot read the size of the disk", Where: c.DataDir, Err: err,
				Hint: "let the user that runs idemd enter the directory, or write [queue] max_bytes",
			}
		}
	}
}

// SocketPath is where the daemon of this configuration listens for the command
// line. It returns an *OperatorError when no system could take the path.
func (c *Config) SocketPath() (string, error) {
	path, err := filepath.Abs(admin.SocketPath(c.DataDir))
	if err != nil {
		return "", fmt.Errorf("find data_dir: %w", err)
	}
	if len(path) > admin.MaxSocketPath {
		return "", &OperatorError{
			What:  fmt.Sprintf("the path of the admin socket has %d bytes, more than the %d that a unix socket can have", len(path), admin.MaxSocketPath),
			Where: path, Hint: "set data_dir to a shorter path",
		}
	}
	return path, nil
}
