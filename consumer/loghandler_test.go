package consumer

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

func TestLog_WritesOneLineWithoutThePayload(t *testing.T) {
	var out bytes.Buffer
	ev := payloadEvent()
	a := attemptOf(ev)
	if answer := NewLog(slog.New(slog.NewTextHandler(&out, nil))).Handle(t.Context(), a); answer != (Answer{Class: Done}) {
		t.Errorf("answer is %+v", answer)
	}
	wantContains(t, out.String(), ev.ID(), ev.Type, "source=wecom", a.Key.RunID(), "attempt=3", "handler=crm")
	if strings.Contains(out.String(), "payload-secret") || strings.Count(out.String(), "\n") != 1 {
		t.Errorf("line is %q", out.String())
	}
}
