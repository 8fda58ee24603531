package receiver

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Values of SourceConfig.Endpoint: what a WeCom callback URL is for.
const (
	EndpointApp   = "app"   // a self-built app or the contacts; receive id: the corp id
	EndpointSuite = "suite" // a third-party suite; receive ids: suite id for commands, corp ids for data
	EndpointBot   = "bot"   // an AI bot; receive id: usually ""
)

// Values of SourceConfig.Reply: what WeCom is told when an event is stored.
const (
	ReplyEmpty   = "empty"   // nothing; the default for apps and bots
	ReplySuccess = "success" // the word; the default for suites, which take anything else for an error
)

// receiveAny as the only one of SourceConfig.ReceiveIDs accepts every id.
const receiveAny = "any"

// maxSkew is how far in the future a request's timestamp may be.
const maxSkew = time.Hour

// wecom is the scheme of WeCom callbacks.
type wecom struct {
	path       string
	tokens     []string
	keys       []wecomKey
	receiveIDs []string
	endpoint   string
	reply      Reply
	maxAge     time.Duration // AgeOff: any
	print      fingerprinter
}

var (
	_ Scheme     = (*wecom)(nil)
	_ Challenger = (*wecom)(nil)
)

func validateWecom(c SourceConfig) []Problem {
	ps := append(countSecrets("token", c.Token),
		unused(c, "wecom", "token", "encoding_aes_key", "receive_ids", "endpoint", "reply", "max_age")...)
	add := func(field, what, hint string) { ps = append(ps, Problem{Field: field, What: what, Hint: hint}) }
	switch {
	case len(c.EncodingAESKey) == 0:
		add("encoding_aes_key", "is missing", `write where it is, e.g. "env:WECOM_AES_KEY"`)
	case len(c.EncodingAESKey) > 2:
		add("encoding_aes_key", "has more than two values", "keep the new one and the one that it replaces")
	}
	switch c.Endpoint {
	case "", EndpointApp, EndpointSuite, EndpointBot:
	default:
		add("endpoint", fmt.Sprintf("%q is not a kind of endpoint", c.Endpoint), `write "app", "suite" or "bot"`)
	}
	switch c.Reply {
	case "", ReplyEmpty, ReplySuccess:
	default:
		add("reply", fmt.Sprintf("%q is not a reply", c.Reply), `write "empty" or "success", or leave it out`)
	}
	if c.MaxAge < 0 && c.MaxAge != AgeOff {
		add("max_age", "is negative", `write a duration such as "30d", or "off"`)
	}
	switch {
	case len(c.ReceiveIDs) == 0:
		add("receive_ids", "is missing", `list the corp id (app), suite id and corp ids (suite), or "" (bot); "any" accepts all`)
	case slices.Contains(c.ReceiveIDs, receiveAny) && len(c.ReceiveIDs) > 1:
		add("receive_ids", `has "any" beside other ids`, `write "any" alone, or take it out`)
	}
	for i, id := range c.ReceiveIDs {
		if id != strings.TrimSpace(id) {
			add("receive_ids", fmt.Sprintf("%q has blanks around it", id), "remove them")
		}
		if slices.Contains(c.ReceiveIDs[:i], id) {
			add("receive_ids", fmt.Sprintf("%q is there twice", id), "keep it once")
		}
	}
	return ps
}

func newWecom(c SourceConfig) (Scheme, []Problem) {
	w := &wecom{
		path:       c.EffectivePath(),
		tokens:     c.Token,
		receiveIDs: c.ReceiveIDs,
		endpoint:   cmp.Or(c.Endpoint, EndpointApp),
		maxAge:     cmp.Or(c.MaxAge, DefaultMaxAge),
		print:      newFingerprinter(c.Volatile),
		reply:      Reply{ContentType: "text/plain; charset=utf-8"},
	}
	if c.Reply == ReplySuccess || c.Reply == "" && w.endpoint == EndpointSuite {
		w.reply.Body = []byte("success")
	}
	problems := validateTokens(c.Token)
	for _, encoded := range c.EncodingAESKey {
		key, err := newWecomKey(encoded)
		if err != nil {
			problems = append(problems, Problem{
				Field: "encoding_aes_key", What: err.Error(),
				Hint: "copy the 43 characters of EncodingAESKey from the admin console, without blanks and without =",
			})
		}
		w.keys = append(w.keys, key)
	}
	return w, problems
}

// Open reads the envelope, checks signature and age, decrypts and identifies.
func (w *wecom) Open(req *Request, now time.Time) (Opened, error) {
	encrypt, err := parseWecomEnvelope(req.Body)
	if err != nil {
		return Opened{}, err
	}
	message, receiveID, index, err := w.unseal(readWecomQuery(req.RawQuery), encrypt, now)
	if err != nil {
		return Opened{}, err
	}
	id := w.Identify(Payload{Body: message, Tenant: string(receiveID)})
	return Opened{Identified: id, Reply: w.reply, SecretIndex: index}, nil
}

// Challenge answers the verification of a callback URL with the decrypted echo.
func (w *wecom) Challenge(req *Request, now time.Time) (Reply, error) {
	q := readWecomQuery(req.RawQuery)
	if q.echo == "" {
		return Reply{}, malformed("verify URL: echostr")
	}
	// A proxy that decoded the query once turned each + into a blank.
	echo := strings.ReplaceAll(q.echo, " ", "+")
	message, _, _, err := w.unseal(q, []byte(echo), now)
	if err != nil {
		return Reply{}, err
	}
	return Reply{ContentType: "text/plain; charset=utf-8", Body: message}, nil
}

// unseal authenticates and opens an encrypted frame. index is the highest one
// of the secrets that were needed.
func (w *wecom) unseal(q wecomQuery, encrypt []byte, now time.Time) (message, receiveID []byte, index int, err error) {
	if !q.once {
		return nil, nil, 0, unauthentic("check signature: missing or repeated parameter")
	}
	index, err = verifyWecom(w.tokens, q.signature, q.timestamp, q.nonce, encrypt)
	if err != nil {
		return nil, nil, 0, err
	}
	if err := w.checkAge(q.timestamp, now); err != nil {
		return nil, nil, 0, err
	}
	var firstErr error
	for i, key := range w.keys {
		message, receiveID, err = key.decrypt(encrypt)
		if err == nil && !w.isReceiver(receiveID) {
			err = unauthentic("check receive id")
		}
		if err == nil {
			return message, receiveID, max(index, i), nil
		}
		if firstErr == nil {
			firstErr = err
		}
	}
	return nil, nil, 0, firstErr
}

// checkAge demands a timestamp of ten digits that is not too old or too new.
func (w *wecom) checkAge(timestamp string, now time.Time) error {
	for _, c := range []byte(timestamp) {
		if c < '0' || c > '9' {
			return malformed("check age: timestamp is no number")
		}
	}
	if len(timestamp) != 10 {
		return unauthentic("check age: timestamp has not ten digits")
	}
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil {
		return malformed("check age: timestamp")
	}
	if w.maxAge == AgeOff {
		return nil
	}
	switch age := now.Sub(time.Unix(seconds, 0)); {
	case age > w.maxAge:
		return unauthentic("check age: too old")
	case age < -maxSkew:
		return unauthentic("check age: in the future")
	}
	return nil
}

func (w *wecom) isReceiver(id []byte) bool {
	for _, r := range w.receiveIDs {
		if r == string(id) || r == receiveAny && len(w.receiveIDs) == 1 {
			return true
		}
	}
	return false
}

// wecomQuery has the four parameters of a callback. A callback URL may have
// others of its own; they are not signed and not looked at.
type wecomQuery struct {
	signature, timestamp, nonce, echo string
	once                              bool // the first three are there exactly once
}

func readWecomQuery(raw string) wecomQuery {
	var q wecomQuery
	var counts [3]int
	for pair := range strings.SplitSeq(raw, "&") {
		name, value, _ := strings.Cut(pair, "=")
		value, err := url.QueryUnescape(value)
		if err != nil {
			continue
		}
		switch name {
		case "msg_signature":
			q.signature = value
			counts[0]++
		case "timestamp":
			q.timestamp = value
			counts[1]++
		case "nonce":
			q.nonce = value
			counts[2]++
		case "echostr":
			q.echo = value
		}
	}
	q.once = counts == [3]int{1, 1, 1}
	return q
}

// parseWecomEnvelope finds the one Encrypt in an XML or JSON envelope. The rest
// of an envelope is outside the signature and not used.
func parseWecomEnvelope(body []byte) ([]byte, error) {
	doc, err := parse(body, envelopeLimits())
	if err != nil {
		return nil, fmt.Errorf("read envelope: %w", err)
	}
	// In JSON some senders write encrypt, some Encrypt. A second one anywhere is
	// for readers that disagree about which one counts.
	isEncrypt := func(name []byte) bool { return string(name) == "Encrypt" }
	if doc.nodes[0].name == nil {
		isEncrypt = func(name []byte) bool { return bytes.EqualFold(name, []byte("encrypt")) }
	}
	count, direct := 0, int32(0)
	for i := range doc.nodes {
		if isEncrypt(doc.nodes[i].name) {
			count++
		}
	}
	for i := doc.nodes[0].child; i != 0; i = doc.nodes[i].next {
		if isEncrypt(doc.nodes[i].name) {
			direct = i
		}
	}
	if count != 1 || direct == 0 || doc.nodes[direct].child != 0 || doc.nodes[direct].kind == kindLiteral {
		return nil, malformed("read envelope: not exactly one Encrypt")
	}
	encrypt := doc.trimmed(direct)
	if len(encrypt) == 0 {
		return nil, malformed("read envelope: empty Encrypt")
	}
	return encrypt, nil
}

// Sign encrypts payload, XML or JSON, for the first of the receive ids.
func (w *wecom) Sign(payload []byte, _ string, now time.Time) (Signed, error) {
	random := make([]byte, 16)
	if _, err := rand.Read(random); err != nil {
		return Signed{}, fmt.Errorf("sign request: %w", err)
	}
	receiveID := w.receiveIDs[0]
	if receiveID == receiveAny {
		receiveID = ""
		if doc, err := parse(payload, payloadLimits()); err == nil {
			receiveID = doc.field("ToUserName")
		}
	}
	encrypt := w.keys[0].encrypt(random, payload, receiveID)
	timestamp := strconv.FormatInt(now.Unix(), 10)
	nonce := rand.Text()
	signature := wecomSignature(w.tokens[0], timestamp, nonce, []byte(encrypt))

	s := Signed{
		Path: w.path,
		RawQuery: url.Values{
			"msg_signature": {string(signature[:])}, "timestamp": {timestamp}, "nonce": {nonce},
		}.Encode(),
		Header: http.Header{"Content-Type": {"text/xml"}},
		Body:   []byte("<xml><ToUserName><![CDATA[" + receiveID + "]]></ToUserName><Encrypt><![CDATA[" + encrypt + "]]></Encrypt></xml>"),
	}
	if w.endpoint == EndpointBot {
		s.Header.Set("Content-Type", "application/json")
		s.Body = []byte(`{"encrypt":"` + encrypt + `"}`)
	}
	return s, nil
}
