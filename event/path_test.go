package event

import (
	"encoding/json"
	"testing"
	"unicode/utf8"
)

func TestAt(t *testing.T) {
	const body = `{"a":{"b":"x","n":12345678901234567890,"t":true,"null":null,"empty":"","list":["y"],"o":{}},"c.d":"dotted"}`
	for path, want := range map[string]string{
		"a.b": "x", "a.n": "12345678901234567890", "a.t": "true",
		"a.null": "", "a.empty": "", "a.list": "", "a.o": "", "a": "", "a.b.c": "", "none": "", "c.d": "", "": "",
	} {
		got, ok := At([]byte(body), path)
		if got != want || ok != (want != "") {
			t.Errorf("%q: %q, %t", path, got, ok)
		}
	}
	if got, ok := At([]byte("no JSON"), "a"); ok {
		t.Errorf("of no JSON: %q", got)
	}
}

// FuzzAt: a text that stands at a path is found there as it is, and garbage is
// never a value.
func FuzzAt(f *testing.F) {
	f.Add("a.b", "x", []byte(`{"a":{"b":1}}`))
	f.Add("", "", []byte(`[]`))
	f.Fuzz(func(t *testing.T, path, text string, garbage []byte) {
		if v, ok := At(garbage, path); ok && (v == "" || !json.Valid(garbage)) {
			t.Fatalf("%q at %q of %q", v, path, garbage)
		}
		body, err := json.Marshal(map[string]any{"a": map[string]any{"b": text}})
		if err != nil || !utf8.ValidString(text) {
			return
		}
		if v, ok := At(body, "a.b"); v != text || ok != (text != "") {
			t.Fatalf("%q became %q, %t", text, v, ok)
		}
	})
}
