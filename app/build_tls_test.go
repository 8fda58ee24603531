package app

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"idemd/consumer"
	"idemd/event"
)

// selfSigned makes NAME.pem and NAME.key in dir.
func selfSigned(t *testing.T, dir, name string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		name + ".pem": {Type: "CERTIFICATE", Bytes: der}, name + ".key": {Type: "PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

const tlsHandler = `
environment = "test"
[[source]]
name = "shop"
scheme = "token"
token = "shop-token"
[[handler]]
name = "crm"
sources = ["shop"]
kind = "http"
effect = "idempotent"
url = %q
`

func TestSpecs_HandlerTrustsItsCAAndShowsItsCertificate(t *testing.T) {
	dir := t.TempDir()
	server, client := selfSigned(t, dir, "server"), selfSigned(t, dir, "client")
	leaf, err := x509.ParseCertificate(client.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AddCert(leaf)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Idemd-Outcome", "done") // counts at a status of 500 only
		w.WriteHeader(500)
	}))
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{server}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients}
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	srv.StartTLS()
	t.Cleanup(srv.Close)
	for keys, want := range map[string]consumer.Class{
		`ca_file = "server.pem"` + "\n" + `client_cert = "client.pem"` + "\n" + `client_key = "file:client.key"`: consumer.Done,
		`ca_file = "client.pem"` + "\n" + `client_cert = "client.pem"` + "\n" + `client_key = "file:client.key"`: consumer.NoEffect,
		`max_rate = 5`: consumer.NoEffect,
	} {
		c, err := Parse(fmt.Appendf(nil, tlsHandler+keys, srv.URL), filepath.Join(dir, "idemd.toml"))
		if err != nil {
			t.Fatal(err)
		}
		specs, _, err := c.specs(slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		ev := &event.Event{Source: "shop", Type: "x", Identity: event.NewIdentity("", event.KindPlatform, "", "1"), Body: []byte("{}")}
		a := specs[0].Handler.Handle(t.Context(), &consumer.Attempt{Event: ev, Key: event.KeyFor(ev, "crm"), Handler: "crm", Number: 1})
		if a.Class != want {
			t.Errorf("%s: %+v, want %v", keys, a, want)
		}
		if h, ok := specs[0].Handler.(*consumer.HTTP); !ok || h.Close() != nil {
			t.Error("not closed")
		}
		if strings.HasPrefix(keys, "max_rate") && specs[0].MaxRate != 5 {
			t.Errorf("rate is %v", specs[0].MaxRate)
		}
	}
}

func TestSpecs_ReportsCertificatesThatCannotBeUsed(t *testing.T) {
	dir := t.TempDir()
	selfSigned(t, dir, "one")
	selfSigned(t, dir, "two")
	for keys, want := range map[string]string{
		`ca_file = "absent.pem"`: "ca_file, line 13: cannot be read",
		`ca_file = "one.key"`:    "ca_file, line 13: holds no certificate",
		`client_cert = "one.pem"` + "\n" + `client_key = "file:two.key"`:    "client_cert, line 13: is not a certificate in PEM form that fits client_key",
		`client_cert = "one.pem"` + "\n" + `client_key = "file:absent.key"`: "client_key, line 14: cannot be read",
	} {
		c, err := Parse([]byte(fmt.Sprintf(tlsHandler, "https://127.0.0.1:1/")+keys), filepath.Join(dir, "idemd.toml"))
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = c.specs(slog.New(slog.DiscardHandler))
		var bad *ConfigError
		if !errors.As(err, &bad) || len(bad.Problems) != 1 || !strings.Contains(bad.Problems[0].String(), want) {
			t.Errorf("%s: %v, want %s", keys, err, want)
		}
	}
}

func TestParse_ReadsBooleansAndRates(t *testing.T) {
	for text, want := range map[string]Rate{"20": 20, "0.5": 0.5, "1_000": 1000} {
		c := parse(t, fmt.Sprintf(tlsHandler, "http://127.0.0.1:1/")+"trust_retry_after = true\nmax_rate = "+text)
		if h := c.Handlers[0]; !h.TrustRetryAfter || h.MaxRate != want {
			t.Errorf("%s: %+v", text, h)
		}
	}
}
