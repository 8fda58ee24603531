package app

import (
	"crypto/tls"
	"crypto/x509"
	"os"
)

// tls reads whom a handler is to trust, and what idemd shows it. It gives nil
// where neither is configured: then the system's roots count.
func (b *builder) tls(c *Config, table string, h *HandlerConfig) *tls.Config {
	if h.CAFile == "" && h.ClientCert == "" {
		return nil
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if h.CAFile != "" {
		cfg.RootCAs = x509.NewCertPool()
		if pem, ok := b.pem(c, table+".ca_file", h.CAFile); ok && !cfg.RootCAs.AppendCertsFromPEM(pem) {
			b.add(c, table+".ca_file", "holds no certificate", "name a file with certificates in PEM form")
		}
	}
	if h.ClientCert != "" {
		before := len(b.problems)
		cert, _ := b.pem(c, table+".client_cert", h.ClientCert)
		key := b.resolve(c, table+".client_key", h.ClientKey)
		if len(b.problems) > before {
			return cfg
		}
		pair, err := tls.X509KeyPair(cert, []byte(key))
		if err != nil { // the text may quote what stands in the files
			b.add(c, table+".client_cert", "is not a certificate in PEM form that fits client_key", "name the two files of one pair")
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg
}

func (b *builder) pem(c *Config, path, file string) ([]byte, bool) {
	pem, err := os.ReadFile(c.abs(file))
	if err != nil {
		b.add(c, path, "cannot be read: "+err.Error(), "let the user that runs idemd read it")
	}
	b.note(pem)
	return pem, err == nil
}
