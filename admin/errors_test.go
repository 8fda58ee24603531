package admin

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"idemd/dedup"
	"idemd/queue"
)

func TestErrors_TravelInOneFormat(t *testing.T) {
	for _, c := range []struct {
		err    error
		status int
		code   string
	}{
		{&Error{CodeBadRequest, "no", ""}, 400, "bad_request"},
		{&Error{CodeAmbiguous, "two", ""}, 409, "ambiguous"},
		{fmt.Errorf("resolve: %w", dedup.ErrFenced), 409, "conflict"},
		{fmt.Errorf("get: %w", queue.ErrMissing), 404, "not_found"},
		{fmt.Errorf("get: %w", dedup.ErrUnavailable), 503, "unavailable"},
		{fmt.Errorf("get: %w", queue.ErrClosed), 503, "unavailable"},
		{errors.New("disk /dev/sda1 burns"), 500, "internal"},
	} {
		s := &Server{b: Backend{Logger: slog.New(slog.DiscardHandler)}}
		w := httptest.NewRecorder()
		s.answer(func(*http.Request) (any, error) { return nil, c.err }).ServeHTTP(w, httptest.NewRequest("GET", "/v1/status", nil))
		body := w.Body.String()
		if w.Code != c.status || !strings.HasPrefix(body, `{"error":{"code":"`+c.code+`","message":"`) || strings.Contains(body, "sda1") {
			t.Errorf("%v: got %d %s", c.err, w.Code, body)
		}
	}
}
