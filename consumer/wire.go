package consumer

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http/httptrace"
	"os"
	"strings"
	"sync/atomic"
	"syscall"

	"idemd/dedup"
)

// countedConn counts what is handed to the kernel.
type countedConn struct {
	net.Conn
	sent atomic.Int64
}

// Write counts before it writes, so that bytes on their way count as sent.
func (c *countedConn) Write(p []byte) (int, error) {
	c.sent.Add(int64(len(p)))
	n, err := c.Conn.Write(p)
	c.sent.Add(int64(n - len(p)))
	return n, err
}

// wire watches whether an attempt put anything on the wire.
type wire struct {
	got    atomic.Bool // a connection was got
	conn   atomic.Pointer[countedConn]
	before atomic.Int64 // bytes sent on it when it was got
}

func (w *wire) trace(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		w.got.Store(true)
		conn := info.Conn
		if t, ok := conn.(*tls.Conn); ok {
			conn = t.NetConn()
		}
		if counted, ok := conn.(*countedConn); ok {
			w.before.Store(counted.sent.Load())
			w.conn.Store(counted)
		}
	}})
}

// nothing reports that certainly no byte of the request left: no connection was
// got, or nothing was written to the one that was.
func (w *wire) nothing() bool {
	if !w.got.Load() {
		return true
	}
	conn := w.conn.Load()
	return conn != nil && conn.sent.Load() == w.before.Load()
}

// classifyError says what an attempt without an answer means. The texts are our
// own: an error of net/http may quote what the far side sent.
func classifyError(ctx context.Context, err error, nothingSent bool) Answer {
	code, detail := describe(ctx, err)
	if nothingSent {
		return Answer{Class: NoEffect, Endless: true, Reason: dedup.Reason{Code: code, Detail: detail + ", before anything was sent"}}
	}
	return Answer{Class: Unknown, Reason: dedup.Reason{Code: code, Detail: detail}}
}

func describe(ctx context.Context, err error) (code, detail string) {
	var (
		dns     *net.DNSError
		cert    *tls.CertificateVerificationError
		alert   tls.AlertError
		record  tls.RecordHeaderError
		op      *net.OpError
		timeout interface{ Timeout() bool }
	)
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(ctx.Err(), context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return "timeout", "no answer in time"
	case errors.Is(err, context.Canceled):
		return "canceled", "the attempt was cut"
	case errors.As(err, &dns):
		return "dns", "the name of the host could not be resolved"
	case errors.As(err, &cert):
		return "tls", "the certificate is not trusted"
	case errors.As(err, &alert), errors.As(err, &record):
		return "tls", "the TLS handshake failed"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused", "the connection was refused"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "reset", "the connection was reset"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "eof", "the connection was closed without an answer"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "timeout", "no answer in time"
	case strings.Contains(err.Error(), "tls: "):
		return "tls", "the TLS handshake failed"
	case errors.As(err, &op) && op.Op == "dial":
		return "connect", "the connection could not be made"
	}
	return "broken", "the connection broke, or the answer was not HTTP"
}
