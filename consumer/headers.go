package consumer

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// setEventHeaders writes the CloudEvents headers (binary mode) and our own.
func setEventHeaders(h http.Header, a *Attempt) {
	ev := a.Event
	when := ev.Time
	if when.IsZero() {
		when = ev.Received
	}
	h.Set("Content-Type", contentType(ev.ContentType))
	h.Set("Ce-Specversion", "1.0")
	h.Set("Ce-Id", headerValue(ev.ID()))
	h.Set("Ce-Source", headerValue("/in/"+url.PathEscape(ev.Source)))
	h.Set("Ce-Type", headerValue(ev.Type))
	h.Set("Ce-Time", when.UTC().Format(time.RFC3339Nano))
	h.Set("Idempotency-Key", a.Key.RunID())
	h.Set("Idemd-Attempt", strconv.Itoa(a.Number))
	h.Set("Idemd-Fence", strconv.FormatUint(uint64(a.Fence), 10))
	h.Set("Idemd-Handler", headerValue(a.Handler))
	h.Set("Idemd-Origin", headerValue(string(ev.Origin)))
	if ev.Batch != "" {
		h.Set("Idemd-Batch", headerValue(ev.Batch))
	}
	if of := a.DuplicateOf; of != nil {
		h.Set("Idemd-Duplicate-Of", of.Key.RunID())
		h.Set("Idemd-Duplicate-State", of.State.String())
		if of.Committed != 0 {
			h.Set("Idemd-Duplicate-Committed", of.Committed.Std().Format(time.RFC3339Nano))
		}
	}
}

// headerValue makes text safe for a header, by the rule of the CloudEvents HTTP
// binding: space, quote, percent and all that is not printable ASCII become %XX.
func headerValue(text string) string {
	const hexDigits = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(text) {
		c := text[i]
		if c > ' ' && c < 0x7f && c != '"' && c != '%' {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('%')
		b.WriteByte(hexDigits[c>>4])
		b.WriteByte(hexDigits[c&15])
	}
	return b.String()
}

// contentType gives the event's media type, or a harmless one where it is none.
func contentType(text string) string {
	if mediaType, params, err := mime.ParseMediaType(text); err == nil {
		if len(params) == 0 && strings.EqualFold(text, mediaType) {
			return text
		}
		if safe := mime.FormatMediaType(mediaType, params); safe != "" {
			return safe
		}
	}
	return "application/octet-stream"
}

// ownHeaders checks a handler's own headers: they may not be ones that idemd or
// the protocol writes, nor break a line.
func ownHeaders(headers map[string]string) (http.Header, error) {
	h := http.Header{"User-Agent": {"idemd"}}
	var problems []string
	for name, value := range headers {
		switch {
		case !validName(name):
			problems = append(problems, fmt.Sprintf("%q is not a header name", name))
		case reserved(name):
			problems = append(problems, fmt.Sprintf("%s is written by idemd", http.CanonicalHeaderKey(name)))
		case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }):
			problems = append(problems, fmt.Sprintf("the value of %s holds a control character", http.CanonicalHeaderKey(name)))
		default:
			h.Set(name, value)
		}
	}
	if len(problems) > 0 {
		slices.Sort(problems)
		return nil, errors.New(joined(problems))
	}
	return h, nil
}

func validName(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	})
}

func reserved(name string) bool {
	name = http.CanonicalHeaderKey(name)
	for _, prefix := range [...]string{"Ce-", "Idemd-", "Webhook-"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	switch name {
	case "Idempotency-Key", "Content-Type", "Content-Length", "Transfer-Encoding", "Connection", "Host", "Expect", "Trailer", "Te", "Upgrade":
		return true
	}
	return false
}

func basicAuth(user *url.Userinfo) string {
	password, _ := user.Password()
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password))
}

// signer writes Standard Webhooks signatures.
type signer struct {
	key []byte
}

func newSigner(secret string) (*signer, error) {
	if secret == "" {
		return nil, nil
	}
	encoded, ok := strings.CutPrefix(secret, "whsec_")
	if !ok {
		return &signer{key: []byte(secret)}, nil
	}
	key, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil || len(key) == 0 {
		return nil, errors.New("what follows whsec_ is not base64")
	}
	return &signer{key: key}, nil
}

// sign writes webhook-id, webhook-timestamp and webhook-signature.
func (s *signer) sign(h http.Header, id string, now time.Time, body []byte) {
	stamp := strconv.FormatInt(now.Unix(), 10)
	mac := hmac.New(sha256.New, s.key)
	mac.Write([]byte(id + "." + stamp + "."))
	mac.Write(body)
	h.Set("Webhook-Id", id)
	h.Set("Webhook-Timestamp", stamp)
	h.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
}
