package receiver

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"idemd/event"
)

// benchPayload is an event of 1 KiB that is keyed by its digest.
func benchPayload() []byte {
	var b bytes.Buffer
	b.WriteString("<xml><ToUserName><![CDATA[ww00c0ffee00c0ffee]]></ToUserName><FromUserName><![CDATA[sys]]></FromUserName>" +
		"<CreateTime>1760000000</CreateTime><MsgType><![CDATA[event]]></MsgType><Event><![CDATA[change_contact]]></Event>" +
		"<ChangeType>update_user</ChangeType><UserID><![CDATA[u_qian]]></UserID>")
	for i := 0; b.Len() < 1000; i++ {
		fmt.Fprintf(&b, "<Field%02d><![CDATA[value of the field]]></Field%02d>", i, i)
	}
	b.WriteString("</xml>")
	return b.Bytes()
}

func BenchmarkOpenWecom(b *testing.B) {
	now := time.Unix(1760000000, 0)
	scheme := wecomScheme(b, wecomSource())
	signed, err := scheme.Sign(benchPayload(), "", now)
	if err != nil {
		b.Fatal(err)
	}
	req := &Request{Method: http.MethodPost, RawQuery: signed.RawQuery, Header: signed.Header, Body: signed.Body}
	b.SetBytes(int64(len(signed.Body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := scheme.Open(req, now); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReceiverPost(b *testing.B) {
	now := time.Unix(1760000000, 0)
	rc, err := New(Config{
		Sources: []SourceConfig{wecomSource()}, Now: func() time.Time { return now },
		Publish: func(context.Context, *event.Event) error { return nil },
	})
	if err != nil {
		b.Fatal(err)
	}
	rc.SetReady(StateReady)
	signed, err := Sign(wecomSource(), benchPayload(), "", now)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		req, err := signed.Request(b.Context(), "http://receiver")
		if err != nil {
			b.Fatal(err)
		}
		w := httptest.NewRecorder()
		rc.ServeHTTP(w, req)
		if w.Code != http.StatusOK {
			b.Fatal(w.Code)
		}
	}
}
