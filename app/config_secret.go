package app

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Secret says where a secret is to be found: env:NAME, file:PATH or
// credential:NAME (systemd). Anything else is the secret itself, which only a
// test environment may have in its configuration. Its methods for printing never
// show a literal one.
type Secret struct {
	ref string
}

// maxSecret bounds what is read from a secret's file.
const maxSecret = 64 << 10

// SecretAt makes a Secret from its text in the configuration.
func SecretAt(ref string) Secret { return Secret{ref} }

// IsZero reports whether nothing is configured.
func (s Secret) IsZero() bool { return s.ref == "" }

// IsLiteral reports whether the configuration holds the secret itself.
func (s Secret) IsLiteral() bool {
	kind, _ := s.split()
	return kind == "" && s.ref != ""
}

// String names the place of the secret, never the secret.
func (s Secret) String() string {
	if s.IsLiteral() {
		return "[secret]"
	}
	return s.ref
}

// GoString is String.
func (s Secret) GoString() string { return s.String() }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText implements encoding.TextMarshaler with String.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

func (s Secret) split() (kind, name string) {
	kind, name, found := strings.Cut(s.ref, ":")
	switch kind {
	case "env", "file", "credential":
		if found {
			return kind, name
		}
	}
	return "", s.ref
}

func (s *Secret) fromTOML(n *node) (what, hint string) {
	if n.kind != kindText {
		return "must be a text in quotes, not " + n.kind.String(), secretHint
	}
	*s = Secret{n.text}
	switch kind, name := s.split(); {
	case n.text == "":
		return "is empty", secretHint
	case kind != "" && name == "":
		return fmt.Sprintf("%q names nothing after the colon", n.text), secretHint
	case kind == "credential" && (strings.ContainsAny(name, `/\`) || name == "." || name == ".."):
		return fmt.Sprintf("%q is not the name of a credential", n.text), "write credential:NAME without slashes"
	}
	return "", ""
}

const secretHint = "write env:NAME, file:PATH or credential:NAME"

// Resolve reads the secret. dir is what a relative file path begins at. White
// space around what was read does not belong to it; nothing but white space is
// an error. No error holds the secret.
func (s Secret) Resolve(dir string) (string, error) {
	kind, name := s.split()
	switch kind {
	case "env":
		v, found := os.LookupEnv(name)
		if !found {
			return "", fmt.Errorf("environment variable %s is not set", name)
		}
		if v = strings.TrimSpace(v); v == "" {
			return "", fmt.Errorf("environment variable %s is empty", name)
		}
		return v, nil
	case "file":
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		return readSecret(name)
	case "credential":
		base := os.Getenv("CREDENTIALS_DIRECTORY")
		if base == "" {
			return "", fmt.Errorf("credential %s: CREDENTIALS_DIRECTORY is not set; idemd was not started by systemd with LoadCredential", name)
		}
		return readSecret(filepath.Join(base, name))
	}
	return s.ref, nil
}

// readSecret reads regular files only. A pipe or a device could keep it waiting
// for ever, so it does not even open one.
func readSecret(path string) (secret string, err error) {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err != nil {
		return "", &fs.PathError{Op: "open", Path: path, Err: reason(err)}
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	b, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	switch {
	case err != nil:
		return "", err
	case len(b) > maxSecret:
		return "", &fs.PathError{Op: "read", Path: path, Err: errors.New("too long for a secret")}
	}
	if secret = strings.TrimSpace(string(b)); secret == "" {
		return "", &fs.PathError{Op: "read", Path: path, Err: errors.New("the file is empty")}
	}
	return secret, nil
}
