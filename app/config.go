package app

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"idemd/consumer"
	"idemd/receiver"
)

// Config is the configuration of one idemd process. Load and DemoConfig make
// complete ones: every default is filled in except those that Config's methods
// give.
type Config struct {
	DataDir     string      `toml:"data_dir"` // absolute after Load
	Environment Environment `toml:"environment"`
	Retire      []string    `toml:"retire"` // ids of handlers and sources that are gone for good

	Receiver ReceiverSection `toml:"receiver"`
	Queue    QueueSection    `toml:"queue"`
	Windows  WindowsSection  `toml:"windows"`
	Sources  []SourceConfig  `toml:"source"`
	Handlers []HandlerConfig `toml:"handler"`

	file   string         // where it was read from; empty for the demo
	places map[string]int // path of each key and table in the file -> line
}

// Environment tells real systems from trials.
type Environment string

// The environments.
const (
	Production Environment = "production"
	Test       Environment = "test" // secrets may stand in the configuration itself
)

// ReceiverSection is what all sources share.
type ReceiverSection struct {
	Listen     string `toml:"listen"`      // host:port
	MaxBody    Size   `toml:"max_body"`    // of one request
	InFlight   int    `toml:"in_flight"`   // requests at one time whose bodies are here
	Readers    int    `toml:"readers"`     // bodies being read at one time
	BodyMemory Size   `toml:"body_memory"` // for all bodies
}

// QueueSection is the durable queue.
type QueueSection struct {
	MaxBytes Size `toml:"max_bytes"` // 0: see Config.QueueBytes
	Reserve  Size `toml:"reserve"`   // 0: see Config.ReserveBytes

	History Duration `toml:"history"` // 0: see Config.HistorySum
}

// WindowsSection is for how long what is remembered. A handler may have its own.
type WindowsSection struct {
	Hot         Duration `toml:"hot"`          // what is told fastest: records this young stay in memory
	Cold        Duration `toml:"cold"`         // duplicates are told for this long after a run was settled
	ReplayLimit Duration `toml:"replay_limit"` // events older than this are not run again

	DeadRetention Duration `toml:"dead_retention"` // dead letters older than this are dropped
}

// SourceConfig is one platform that calls us.
type SourceConfig struct {
	Name      string   `toml:"name"`
	ID        string   `toml:"id"` // part of every key; the name unless set
	Scheme    string   `toml:"scheme"`
	Path      string   `toml:"path"`       // where it calls; /in/NAME unless set
	OnRefuse  string   `toml:"on_refuse"`  // status or hold; empty: the scheme's own
	MaxBody   Size     `toml:"max_body"`   // 0: that of [receiver]
	Volatile  []string `toml:"volatile"`   // paths that do not count when payloads are compared
	RetrySpan Duration `toml:"retry_span"` // for how long the platform delivers an event again; 0: what is documented

	// scheme wecom and token
	Token         Secret `toml:"token"`
	PreviousToken Secret `toml:"previous_token"`

	// scheme wecom
	EncodingAESKey         Secret   `toml:"encoding_aes_key"`
	PreviousEncodingAESKey Secret   `toml:"previous_encoding_aes_key"`
	ReceiveIDs             []string `toml:"receive_ids"`
	Endpoint               string   `toml:"endpoint"` // app, suite or bot; empty: app
	Reply                  string   `toml:"reply"`    // empty or success; empty: the endpoint's own
	MaxAge                 Age      `toml:"max_age"`  // not set: [windows] cold

	// scheme hmac
	Secret          Secret `toml:"secret"`
	PreviousSecret  Secret `toml:"previous_secret"`
	Algorithm       string `toml:"algorithm"` // sha1, sha256 or sha512; empty: sha256
	Encoding        string `toml:"encoding"`  // hex, base64 or base64url; empty: hex
	Prefix          string `toml:"prefix"`    // before each signature
	Separator       string `toml:"separator"` // between several in one header; empty: there is one
	TimestampHeader string `toml:"timestamp_header"`
	Signed          string `toml:"signed"`    // of {body}, {timestamp}, {id} and text; empty: {body}
	Tolerance       Age    `toml:"tolerance"` // of the timestamp; not set: 5m

	// scheme token and hmac
	Header      string `toml:"header"`       // that carries token or signature; empty, for a token: Authorization: Bearer
	IDHeader    string `toml:"id_header"`    // where the event's id stands: a header
	IDPath      string `toml:"id_path"`      // or a path in the JSON body
	TypeHeader  string `toml:"type_header"`  // where its type stands
	TypePath    string `toml:"type_path"`    //
	DefaultType string `toml:"default_type"` // where neither says one
	IDScope     string `toml:"id_scope"`     // source or type: within what ids are unique
}

// HandlerConfig is one thing to do for each event.
type HandlerConfig struct {
	Name             string            `toml:"name"`
	ID               string            `toml:"id"` // part of every key; the name unless set
	Sources          []string          `toml:"sources"`
	Types            []string          `toml:"types"` // empty: all but unparsed
	Kind             string            `toml:"kind"`  // http, exec or log
	URL              string            `toml:"url"`
	Command          []string          `toml:"command"` // program and arguments
	Headers          map[string]Secret `toml:"headers"`
	Secret           Secret            `toml:"secret"` // of the Standard Webhooks signature
	Effect           string            `toml:"effect"`
	StoreUnavailable string            `toml:"store_unavailable"`
	Timeout          Duration          `toml:"timeout"`
	Concurrency      int               `toml:"concurrency"`
	Retry            []Duration        `toml:"retry"`        // waits between attempts
	SerializeBy      string            `toml:"serialize_by"` // path in the body, or "*"; empty: no bound
	HoldOrder        bool              `toml:"hold_order"`
	OnMismatch       string            `toml:"on_mismatch"`
	OnDuplicate      string            `toml:"on_duplicate"` // drop, dead-letter or handler:NAME
	Cold             Duration          `toml:"cold"`         // 0: that of [windows]
	Answers          map[string]string `toml:"answers"`      // status or exit code -> what it means
	Proxy            string            `toml:"proxy"`
	CAFile           string            `toml:"ca_file"`           // PEM; the only roots that are trusted
	ClientCert       string            `toml:"client_cert"`       // PEM
	ClientKey        Secret            `toml:"client_key"`        // PEM
	MaxRate          Rate              `toml:"max_rate"`          // 0: no bound
	TrustRetryAfter  bool              `toml:"trust_retry_after"` // no proxy stands in between that writes it
}

// Default gives a configuration without sources and handlers.
func Default() *Config {
	return &Config{
		DataDir:     "/var/lib/idemd",
		Environment: Production,
		Receiver: ReceiverSection{
			Listen: "127.0.0.1:8420", MaxBody: receiver.DefaultMaxBody, InFlight: receiver.DefaultInFlight,
			Readers: receiver.DefaultReaders, BodyMemory: receiver.DefaultBodyMemory,
		},
		Windows: WindowsSection{
			Hot: defaultHot, Cold: Duration(consumer.DefaultRetain), ReplayLimit: Duration(consumer.DefaultReplayLimit),
			DeadRetention: defaultDeadRetention,
		},
	}
}

// setDefaults is called by the decoder for each new handler.
func (h *HandlerConfig) setDefaults() {
	h.Timeout = Duration(consumer.DefaultTimeout)
	h.Concurrency = consumer.DefaultConcurrency
	h.OnMismatch = string(consumer.MismatchPark)
	h.OnDuplicate = string(consumer.OnDuplicateDrop)
	for _, d := range consumer.DefaultRetry() {
		h.Retry = append(h.Retry, Duration(d))
	}
}

// defaultDeadRetention gives people a month to look at a dead letter.
const defaultDeadRetention = Duration(30 * day)

// defaultHot covers the retries of most platforms.
const defaultHot = Duration(2 * time.Hour)

// maxConfig bounds the file that Load reads.
const maxConfig = 4 << 20

// Load reads and checks the configuration in file. It returns an
// *OperatorError when the file cannot be read and a *ConfigError with
// everything that is wrong in it.
func Load(file string) (*Config, error) {
	data, abs, err := readConfig(file)
	if err != nil {
		return nil, err
	}
	return Parse(data, abs)
}

// LoadPlace is Load for those who only want to find the running idemd: of the
// configuration that it gives nothing but DataDir counts, and nothing but that, and
// the syntax of the file, can be wrong.
func LoadPlace(file string) (*Config, error) {
	data, abs, err := readConfig(file)
	if err != nil {
		return nil, err
	}
	c := Default()
	c.file, c.places = abs, map[string]int{}
	tree, problems := parseTree(bytes.TrimPrefix(data, []byte("\ufeff")))
	if tree == nil {
		return nil, &ConfigError{File: abs, Problems: c.inOrder(problems)}
	}
	d := decoder{places: c.places}
	d.table(tree, "", c)
	if d.broken("data_dir") || c.DataDir == "" {
		return nil, &ConfigError{File: abs, Problems: c.inOrder(d.problems)}
	}
	return &Config{DataDir: c.abs(c.DataDir), file: abs}, nil
}

// readConfig gives the file's bytes and absolute path.
func readConfig(file string) (data []byte, abs string, err error) {
	info, err := os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, "", &OperatorError{
			What: "the configuration file does not exist", Where: file,
			Hint: "write one with: idemd init " + file,
		}
	case err != nil:
		return nil, "", unreadable(file, err)
	case info.Size() > maxConfig:
		return nil, "", &OperatorError{What: "the configuration file is too long", Where: file, Hint: "name a TOML file with --config"}
	}
	if data, err = os.ReadFile(file); err != nil {
		return nil, "", unreadable(file, err)
	}
	if abs, err = filepath.Abs(file); err != nil {
		return nil, "", unreadable(file, err)
	}
	return data, abs, nil
}

func unreadable(file string, err error) error {
	return &OperatorError{
		What: "cannot read the configuration file", Where: file, Err: reason(err),
		Hint: "check who may read it, and which file --config names",
	}
}

// reason leaves out the file name that the sentence around err names already.
func reason(err error) error {
	var perr *fs.PathError
	if errors.As(err, &perr) {
		return perr.Err
	}
	return err
}

// Parse reads and checks a configuration. Relative paths in it begin at file's
// directory. It returns a *ConfigError with everything that is wrong.
func Parse(data []byte, file string) (*Config, error) {
	c := Default()
	c.file, c.places = file, map[string]int{}
	tree, problems := parseTree(bytes.TrimPrefix(data, []byte("\ufeff"))) // Windows editors begin a file so
	if tree != nil {
		d := decoder{places: c.places, problems: problems}
		d.table(tree, "", c)
		problems = append(d.problems, c.validate(d.broken)...)
	}
	if len(problems) > 0 {
		return nil, &ConfigError{File: file, Problems: c.inOrder(problems)}
	}
	c.fill()
	return c, nil
}

// fill sets what depends on other keys.
func (c *Config) fill() {
	c.DataDir = c.abs(c.DataDir)
	for i := range c.Sources {
		s := &c.Sources[i]
		setIfZero(&s.ID, s.Name)
		setIfZero(&s.Path, "/in/"+s.Name)
		setIfZero(&s.MaxBody, c.Receiver.MaxBody)
		if s.MaxAge == (Age{}) && s.Scheme == schemeWeCom {
			s.MaxAge.Limit = c.Windows.Cold
		}
	}
	for i := range c.Handlers {
		h := &c.Handlers[i]
		setIfZero(&h.ID, h.Name)
		setIfZero(&h.Cold, c.Windows.Cold)
	}
}

func setIfZero[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}

func (c *Config) abs(path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(c.dir(), path)
}

// dir is what relative paths begin at.
func (c *Config) dir() string {
	if c.file == "" {
		return "."
	}
	return filepath.Dir(c.file)
}

// File is where the configuration was read from; empty for the demo.
func (c *Config) File() string { return c.file }
