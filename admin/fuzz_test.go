package admin

import (
	"bytes"
	"errors"
	"net/http"
	"testing"
)

// FuzzRequest: a request's body and query are understood, or the caller is told
// that they are wrong.
func FuzzRequest(f *testing.F) {
	f.Add([]byte(`{}`), "limit=5&since=24h")
	f.Add([]byte(`{"as":"done"}{}`), "limit=-1")
	f.Add([]byte(`[`), "since=-9223372036854775808ns")
	f.Fuzz(func(t *testing.T, body []byte, query string) {
		r, err := http.NewRequest(http.MethodPost, "http://socket/", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.URL.RawQuery = query
		var v map[string]any
		limit, limitErr := limitOf(r)
		since, sinceErr := sinceOf(r, 0)
		for _, err := range []error{decode(r, &v), limitErr, sinceErr} {
			var told *Error
			if err != nil && (!errors.As(err, &told) || told.Code != CodeBadRequest) {
				t.Fatalf("error %v", err)
			}
		}
		if limitErr == nil && (limit < 1 || limit > maxLimit) || sinceErr == nil && since < 0 {
			t.Fatalf("limit %d, since %v", limit, since)
		}
	})
}

// FuzzLine: a line of the register that is understood is what was written to it.
func FuzzLine(f *testing.F) {
	line, err := encodeLine(Batch{ID: "bat_x", Reason: "r"})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(line))
	f.Add("00000000 {}\n")
	f.Fuzz(func(t *testing.T, line string) {
		var b, back Batch
		if decodeLine(line, &b) != nil {
			return
		}
		again, err := encodeLine(b)
		if err != nil || decodeLine(string(again), &back) != nil || back.ID != b.ID || back.Reason != b.Reason || back.Who != b.Who {
			t.Fatalf("%+v became %+v, %v", b, back, err)
		}
	})
}
