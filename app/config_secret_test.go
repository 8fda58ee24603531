package app

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSecret_ResolvesFromEveryPlace(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("IDEMD_TEST_SECRET", " from-env\n")
	t.Setenv("IDEMD_TEST_EMPTY", " ")
	t.Setenv("CREDENTIALS_DIRECTORY", dir)
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("token", "from-file\n")
	write("empty", "\n")
	write("long", strings.Repeat("x", maxSecret+1))

	if err := unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}

	for ref, want := range map[string]string{
		"env:IDEMD_TEST_SECRET":                "from-env",
		"file:token":                           "from-file",
		"file:" + filepath.Join(dir, "token"):  "from-file",
		"credential:token":                     "from-file",
		"literal":                              "literal",
		"unknown:word":                         "unknown:word",
		"env:IDEMD_TEST_EMPTY":                 "",
		"env:IDEMD_TEST_UNSET":                 "",
		"file:absent":                          "",
		"file:empty":                           "",
		"file:long":                            "",
		"file:.":                               "",
		"file:pipe":                            "",
		"file:/dev/zero":                       "",
		"credential:pipe":                      "",
		"credential:absent":                    "",
		"file:" + filepath.Join(dir, "absent"): "",
	} {
		got, err := SecretAt(ref).Resolve(dir)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: got %q, %v", ref, got, err)
		}
	}
}

// Nobody writes into the pipe: to open it would be to wait for ever.
func TestSecret_SaysThatAPipeIsNoFile(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := SecretAt("file:" + pipe).Resolve("."); err == nil || err.Error() != "open "+pipe+": not a regular file" {
		t.Errorf("got %v", err)
	}
}

func TestSecret_CredentialNeedsSystemd(t *testing.T) {
	t.Setenv("CREDENTIALS_DIRECTORY", "")
	if _, err := SecretAt("credential:x").Resolve("."); err == nil || !strings.Contains(err.Error(), "systemd") {
		t.Errorf("got %v", err)
	}
}

func TestSecret_IsNeverPrinted(t *testing.T) {
	s := struct{ Token Secret }{SecretAt("hunter2")}
	encoded, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		fmt.Sprint(s.Token), fmt.Sprintf("%v %+v %#v", s, s, s), string(encoded), s.Token.LogValue().String(),
	} {
		if strings.Contains(text, "hunter2") {
			t.Errorf("printed: %s", text)
		}
	}
	if got := SecretAt("env:NAME").String(); got != "env:NAME" {
		t.Errorf("the place of a secret is no secret, got %q", got)
	}
}
