package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"idemd/admin"
)

// Finding is what Check has found about one thing outside the configuration.
type Finding struct {
	Subject string `json:"subject"`
	OK      bool   `json:"ok"`
	What    string `json:"what"`
	Hint    string `json:"hint,omitempty"`
}

func fine(subject, what string) Finding { return Finding{Subject: subject, OK: true, What: what} }

func bad(subject string, err error) Finding {
	f := Finding{Subject: subject, What: err.Error()}
	var operator *OperatorError
	if errors.As(err, &operator) {
		f.Hint = operator.Hint
	}
	return f
}

// Check looks at what a valid configuration needs around it: secrets that can be
// read, a free port, a data directory that can be written. It changes nothing.
// What the present user may not read, the service's user may.
func (c *Config) Check(ctx context.Context) []Finding {
	all := append(c.checkSecrets(), c.checkDataDir(), c.checkQueue(), c.checkReserve())
	socket, err := c.SocketPath()
	if err != nil {
		return append(all, bad("admin socket", err))
	}
	client := admin.NewClient(socket)
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	running, err := client.Status(ctx)
	if err == nil {
		all = append(all, fine("daemon", fmt.Sprintf("idemd %s runs on this data directory and listens on %s", running.Version, running.Listen)))
		all = append(all, c.checkIDs(running.Store.Open)...)
		return append(all, checkRunTimes(ctx, client)...)
	}
	if !errors.Is(err, admin.ErrNotRunning) {
		return append(all, bad("daemon", err))
	}
	return append(all, c.checkListen(ctx))
}

// checkIDs looks for handlers that the running idemd has work for, and that are
// not configured. open is handler id -> state -> records.
func (c *Config) checkIDs(open map[string]map[string]int) []Finding {
	var all []Finding
	for _, id := range slices.Sorted(maps.Keys(open)) {
		n := unsettled(open[id])
		if n == 0 || c.hasHandler(id) || slices.Contains(c.Retire, id) {
			continue
		}
		all = append(all, Finding{
			Subject: "handler id " + id, What: fmt.Sprintf("%d of its runs are not settled, and it is not configured", n),
			Hint: fmt.Sprintf("write id = %q at the handler that was renamed, or give them up with retire = [%q]", id, id),
		})
	}
	return all
}

// subject names what is read beside the configuration.
func subject(path string) string {
	for _, key := range [...]string{".command", ".ca_file", ".client_cert"} {
		if strings.HasSuffix(path, key) {
			return path
		}
	}
	return "secret " + path
}

func (c *Config) checkSecrets() []Finding {
	var all []Finding
	_, sources := c.ReceiverSources()
	specs, _, handlers := c.specs(slog.New(slog.DiscardHandler))
	closeHandlers(specs)
	for _, err := range []error{sources, handlers} {
		var problems *ConfigError
		if errors.As(err, &problems) {
			for _, p := range problems.Problems {
				all = append(all, Finding{Subject: subject(p.Path), What: p.What, Hint: p.Hint})
			}
		} else if err != nil {
			all = append(all, bad("secrets", err))
		}
	}
	if len(all) == 0 {
		all = append(all, fine("secrets", "all can be read"))
	}
	return all
}

func (c *Config) checkListen(ctx context.Context) Finding {
	const subject = "receiver.listen"
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.Receiver.Listen)
	if err != nil {
		return bad(subject, &OperatorError{
			What: "cannot listen on " + c.Receiver.Listen, Err: err,
			Hint: "stop what uses the address (ss -ltnp), or write another one",
		})
	}
	if err := l.Close(); err != nil {
		return bad(subject, err)
	}
	return fine(subject, c.Receiver.Listen+" is free")
}

func (c *Config) checkDataDir() Finding {
	const subject = "data_dir"
	dir, made := c.DataDir, true
	info, err := os.Stat(dir)
	for errors.Is(err, fs.ErrNotExist) && filepath.Dir(dir) != dir {
		dir, made = filepath.Dir(dir), false
		info, err = os.Stat(dir)
	}
	if err == nil && !info.IsDir() {
		err = unix.ENOTDIR
	}
	if err == nil {
		err = unix.Access(dir, unix.W_OK|unix.X_OK)
	}
	switch {
	case err != nil:
		return bad(subject, &OperatorError{
			What: "cannot write to " + dir, Err: reason(err),
			Hint: "let the user that runs idemd write there, or set data_dir to another directory",
		})
	case !made:
		return fine(subject, c.DataDir+" will be made at the first start")
	}
	if err := checkAccess(c.DataDir); err != nil {
		return bad(subject, err)
	}
	return fine(subject, c.DataDir+" can be written")
}

func (c *Config) checkQueue() Finding {
	const subject = "queue.max_bytes"
	n, err := c.QueueBytes()
	if err != nil {
		return bad(subject, err)
	}
	disk, err := c.diskBytes()
	if err != nil {
		return bad(subject, err)
	}
	if n > disk {
		return bad(subject, &OperatorError{
			What: fmt.Sprintf("%s is more than the whole disk, %d MiB", Size(n), disk>>20), Hint: "write less, or leave it out",
		})
	}
	return fine(subject, fmt.Sprintf("%d MiB of a disk of %d MiB", n>>20, disk>>20))
}

// checkReserve says whether the disk has the space that events are taken with.
func (c *Config) checkReserve() Finding {
	const subject = "queue.reserve"
	reserve, err := c.ReserveBytes()
	if err != nil {
		return bad(subject, err)
	}
	dir := c.DataDir
	for _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) && filepath.Dir(dir) != dir; _, err = os.Stat(dir) {
		dir = filepath.Dir(dir)
	}
	free, err := freeBytes(dir)
	if err != nil {
		return bad(subject, err)
	}
	if free < reserve {
		return bad(subject, &OperatorError{
			What: fmt.Sprintf("%d MiB of the disk are free, less than the reserve of %d MiB: events would be refused", free>>20, reserve>>20),
			Hint: "make room, or write a smaller reserve",
		})
	}
	return fine(subject, fmt.Sprintf("%d MiB of the disk are free, %d MiB is the reserve", free>>20, reserve>>20))
}
