package queue

import (
	"regexp"
	"strings"
	"testing"
)

func TestToken_OfDifferentNamesDiffer(t *testing.T) {
	names := []string{
		"", "a", "A", "=", "==", "=64", ".", "*", ">", "a.b", "a b", "a\x00", "\xff", "é",
		strings.Repeat("x", 64), strings.Repeat("x", 65), strings.Repeat("x", 100), strings.Repeat("x", 101),
		strings.Repeat("x", 5000), token("a.b"), token(strings.Repeat("x", 5000)), "change_contact.create_user",
	}
	valid := regexp.MustCompile(`^=?=?[A-Za-z0-9_-]*$`)
	seen := make(map[string]string)
	for _, name := range names {
		tok := token(name)
		if other, taken := seen[tok]; taken {
			t.Errorf("%q and %q share token %q", name, other, tok)
		}
		seen[tok] = name
		if tok == "" || len(tok) > 200 || !valid.MatchString(tok) {
			t.Errorf("%q has token %q", name, tok)
		}
	}
}

func TestToken_OfAPlainNameIsTheName(t *testing.T) {
	for _, name := range []string{"wecom", "We-Com_2", "0"} {
		if got := token(name); got != name {
			t.Errorf("%q has token %q", name, got)
		}
	}
	if got, want := token("a.b"), "=c4n64"; got != want {
		t.Errorf("a.b has token %q, want %q", got, want)
	}
}

func FuzzToken(f *testing.F) {
	f.Add("a", "=64")
	f.Add(strings.Repeat("y", 101), strings.Repeat("y", 102))
	f.Fuzz(func(t *testing.T, a, b string) {
		if (a == b) != (token(a) == token(b)) {
			t.Errorf("%q and %q", a, b)
		}
	})
}
