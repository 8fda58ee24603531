package admin_test

import (
	"encoding/json"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"idemd/admin"
)

func TestWindows_AreThoseOfTheSourceThatIsAskedFor(t *testing.T) {
	b := admin.Backend{
		Sources: func() map[string]string { return map[string]string{"shop": "shop-id", "wecom": "wecom"} }, Logger: slog.New(slog.DiscardHandler), Replays: &admin.Replays{},
		Windows: func() admin.Windows {
			return admin.Windows{Sources: []admin.SourceWindows{
				{Source: "shop", ID: "shop-id", Span: admin.Seconds(90 * time.Minute)}, {Source: "wecom", ID: "wecom"},
			}}
		},
	}
	ask := func(b admin.Backend, query string) (w admin.Windows, body string) {
		t.Helper()
		rec := httptest.NewRecorder()
		admin.NewServer(b).ServeHTTP(rec, httptest.NewRequest("GET", "/v1/windows"+query, nil))
		if err := json.Unmarshal(rec.Body.Bytes(), &w); err != nil {
			t.Fatal(err)
		}
		return w, rec.Body.String()
	}
	if w, _ := ask(b, ""); len(w.Sources) != 2 {
		t.Errorf("got %+v", w)
	}
	for _, word := range []string{"shop", "shop-id"} {
		w, body := ask(b, "?source="+word)
		if len(w.Sources) != 1 || w.Sources[0].Source != "shop" || w.Sources[0].Span != admin.Seconds(90*time.Minute) ||
			!strings.Contains(body, `"span_seconds":5400.000`) {
			t.Errorf("%s: got %s", word, body)
		}
	}
	if _, body := ask(b, "?source=nobody"); !strings.Contains(body, string(admin.CodeNotFound)) {
		t.Errorf("got %s", body)
	}
	b.Windows = nil
	if _, body := ask(b, ""); !strings.Contains(body, `"sources":[]`) {
		t.Errorf("without a ledger: %s", body)
	}
}
