package event

import "testing"

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
