package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"idemd/receiver"
)

// vector is one request of receiver/testdata/wecom.json.
type vector struct {
	ID      string
	Token   string
	Key     string `json:"encoding_aes_key"`
	Receive string `json:"receive_id"`
	Outcome string // of negative ones
	Request *vectorRequest
	Many    []vectorRequest `json:"requests"`
}

type vectorRequest struct {
	Method, Query, Body string
	Repeat              *struct {
		Prefix, Unit, Suffix string
		Count                int
	} `json:"body_repeat"`
	PerSecond int    `json:"bytes_per_second"`
	Reply     string `json:"expect_body"`
}

func loadVectors(t *testing.T) []vector {
	t.Helper()
	data, err := os.ReadFile("../receiver/testdata/wecom.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Positive, Negative []vector }
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	for i := range file.Positive {
		file.Positive[i].Outcome = "accept_200"
	}
	return append(file.Positive, file.Negative...)
}

// wanted gives the statuses that an outcome allows.
func wanted(outcome string) []int {
	switch outcome {
	case "accept_200", "quarantine_200":
		return []int{http.StatusOK}
	case "reject_401":
		return []int{http.StatusUnauthorized}
	case "reject_400":
		return []int{http.StatusBadRequest}
	case "reject_413":
		return []int{http.StatusRequestEntityTooLarge}
	}
	return []int{http.StatusOK, http.StatusBadRequest, http.StatusUnauthorized}
}

// Every vector at a running daemon, by its real clock: max_age is off. The ones
// about the configuration and the clock are tested in the receiver.
func TestWecom_VectorsAtTheRunningDaemon(t *testing.T) {
	vectors := loadVectors(t)
	config, paths := "", map[string]string{}
	for _, v := range vectors {
		at := v.Token + "/" + v.Key + "/" + v.Receive
		if v.Outcome == "config_refused" || v.Token == "" || paths[at] != "" {
			continue
		}
		name := fmt.Sprintf("v%d", len(paths))
		paths[at] = "/in/" + name
		config += wecomSource(name, v.Token, v.Key, v.Receive)
	}
	a := startApp(t, config+logHandler)
	tested := 0
	for _, v := range vectors {
		path := paths[v.Token+"/"+v.Key+"/"+v.Receive]
		requests := v.Many
		if v.Request != nil {
			requests = append(requests, *v.Request)
		}
		if path == "" || v.Outcome == "config_refused" || v.ID == "neg-future-timestamp" {
			continue
		}
		for _, r := range requests {
			tested++
			status, body := sendVector(t, a.addr, path, r)
			if !slices.Contains(wanted(v.Outcome), status) {
				t.Errorf("%s: status %d, want %v", v.ID, status, wanted(v.Outcome))
			}
			if r.Reply != "" && body != r.Reply {
				t.Errorf("%s: answer %q, want %q", v.ID, body, r.Reply)
			}
		}
	}
	if tested < 70 {
		t.Errorf("only %d requests were tested", tested)
	}
}

func sendVector(t *testing.T, addr, path string, r vectorRequest) (int, string) {
	t.Helper()
	body := r.Body
	if r.Repeat != nil {
		body = r.Repeat.Prefix + strings.Repeat(r.Repeat.Unit, r.Repeat.Count) + r.Repeat.Suffix
	}
	req, err := http.NewRequest(r.Method, "http://"+addr+path+"?"+r.Query, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if r.PerSecond > 0 {
		req.Body = &dribble{body: req.Body, every: time.Second / time.Duration(r.PerSecond)}
	}
	resp, err := sender.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(answer)
}

// dribble is a body that comes a byte at a time.
type dribble struct {
	body  io.ReadCloser
	every time.Duration
}

func (d *dribble) Read(p []byte) (int, error) {
	<-time.After(d.every)
	return d.body.Read(p[:1])
}

func (d *dribble) Close() error { return d.body.Close() }

// Each sample event, sent three times at the same moment, reaches an http
// handler once, as JSON with all its headers.
func TestWecom_EachSampleReachesTheHandlerOnce(t *testing.T) {
	const key, corp = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFG", "ww00c0ffee00c0ffee"
	got := make(chan *http.Request, 1000)
	sink := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || !json.Valid(body) {
			t.Errorf("%s: body is not JSON: %v", r.Header.Get("ce-type"), err)
		}
		got <- r
	}))
	defer sink.Close()
	a := startApp(t, wecomSource("wecom", "tok", key, corp)+`
[[handler]]
name = "crm"
sources = ["wecom"]
kind = "http"
url = "`+sink.URL+`/crm"
effect = "irrevocable"
store_unavailable = "refuse"
`)
	files, err := filepath.Glob("../receiver/testdata/wecom/events/*.xml")
	if err != nil || len(files) != 43 {
		t.Fatalf("%d samples, %v", len(files), err)
	}
	source := receiver.SourceConfig{
		Name: "wecom", Scheme: "wecom", Token: []string{"tok"}, EncodingAESKey: []string{key}, ReceiveIDs: []string{corp},
	}
	var copies sync.WaitGroup
	for _, file := range files {
		payload, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			copies.Go(func() { sendSigned(t, a.addr, source, payload) })
		}
	}
	copies.Wait()
	keys, ids := map[string]int{}, map[string]int{}
	for range files {
		select {
		case r := <-got:
			keys[r.Header.Get("Idempotency-Key")]++
			ids[r.Header.Get("ce-id")]++
			checkHeaders(t, r)
		case <-time.After(patience):
			t.Fatalf("only %d of %d samples arrived", len(keys), len(files))
		}
	}
	until(t, "all copies to be suppressed", func() bool {
		v := a.live().pools[0].Snapshot().Verdicts
		return v["granted"]+v["done"]+v["busy"] == uint64(3*len(files))
	})
	if len(keys) != len(files) || len(ids) != len(files) || len(got) != 0 {
		t.Errorf("%d samples gave %d keys, %d ids and %d calls more", len(files), len(keys), len(ids), len(got))
	}
}

func checkHeaders(t *testing.T, r *http.Request) {
	t.Helper()
	for name, prefix := range map[string]string{
		"Content-Type": "application/json", "Idempotency-Key": "run_", "ce-id": "evt_", "ce-specversion": "1.0",
		"ce-source": "/in/wecom", "ce-type": "", "ce-time": "20", "Idemd-Attempt": "1", "Idemd-Fence": "",
		"Idemd-Handler": "crm", "Idemd-Origin": "callback",
	} {
		if v := r.Header.Get(name); v == "" || !strings.HasPrefix(v, prefix) {
			t.Errorf("%s: header %s is %q", r.Header.Get("ce-type"), name, v)
		}
	}
}

func sendSigned(t *testing.T, addr string, source receiver.SourceConfig, payload []byte) {
	signed, err := receiver.Sign(source, payload, "", time.Now())
	if err != nil {
		t.Error(err)
		return
	}
	req, err := signed.Request(context.Background(), "http://"+addr)
	if err != nil {
		t.Error(err)
		return
	}
	resp, err := sender.Do(req)
	if err != nil {
		t.Error(err)
		return
	}
	if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("status %d, %v", resp.StatusCode, err)
	}
}

const logHandler = `
[[handler]]
name = "log"
sources = ["v0"]
kind = "log"
effect = "retryable"
store_unavailable = "refuse"
`

func wecomSource(name, token, key, receiveID string) string {
	return fmt.Sprintf(`
[[source]]
name = %q
scheme = "wecom"
token = %q
encoding_aes_key = %q
receive_ids = [%q]
max_age = "off"
`, name, token, key, receiveID)
}

// startApp runs an App in this process until the test ends.
func startApp(t *testing.T, config string) *App {
	t.Helper()
	dir, err := os.MkdirTemp("", "idemd")
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("data_dir = %q\nenvironment = \"test\"\n[receiver]\nlisten = \"127.0.0.1:0\"\n[queue]\nmax_bytes = \"256MiB\"\n%s",
		filepath.Join(dir, "data"), config)
	cfg, err := Parse([]byte(text), filepath.Join(dir, "idemd.toml"))
	if err != nil {
		t.Fatal(err)
	}
	ready := make(chan struct{})
	a, err := New(t.Context(), cfg, Options{Version: "test", Ready: func(string) { close(ready) }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	<-ready
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
		var operr *net.OpError
		if _, err := net.Dial("tcp", a.addr); !errors.As(err, &operr) {
			t.Errorf("the receiver still listens: %v", err)
		}
	})
	return a
}
