package consumer

import "testing"

// FuzzAnswers: a handler's own rule is one for a status that exists.
func FuzzAnswers(f *testing.F) {
	f.Add("409", "done")
	f.Add("099", "no-effect")
	f.Add("+200", "unknown")
	f.Fuzz(func(t *testing.T, status, class string) {
		own, err := ParseAnswers(map[string]string{status: class})
		if (err == nil) != (len(own) == 1) {
			t.Fatalf("%v, %v", own, err)
		}
		for n, c := range own {
			if n < 100 || n > 599 || c.String() != class {
				t.Fatalf("%q = %q became %d = %v", status, class, n, c)
			}
		}
	})
}

// FuzzURL: what is taken for a handler's URL has a host, and is taken again as
// it is written.
func FuzzURL(f *testing.F) {
	f.Add("http://127.0.0.1:9000/crm")
	f.Add("https://user:pass@[::1]/x?y#z")
	f.Add("HTTP://a")
	f.Fuzz(func(t *testing.T, text string) {
		u, err := parseURL(text)
		if err != nil {
			return
		}
		if _, err := parseURL(u.String()); u.Host == "" || err != nil {
			t.Fatalf("%q became %q: %v", text, u, err)
		}
	})
}
