package app

import (
	"fmt"

	"idemd/receiver"
)

// The schemes that have keys of their own here.
const (
	schemeWeCom = "wecom"
	schemeToken = "token"
	schemeHMAC  = "hmac"
)

// sources checks what the receiver cannot know: where secrets come from, which
// keys are absent. The rest is the receiver's to say.
func (v *validation) sources() {
	if len(v.c.Sources) == 0 {
		v.add("source", "there is no source: nobody could call", "write one [[source]]; idemd init writes an example")
	}
	configs := make([]receiver.SourceConfig, len(v.c.Sources))
	for i := range v.c.Sources {
		table := fmt.Sprintf("source[%d]", i)
		s := &v.c.Sources[i]
		v.name(table, s.Name, s.ID)
		if s.Scheme == "" {
			v.required(table, "scheme", true, `write "wecom", "token" or "hmac"`)
		}
		if v.c.has(table+".max_body") && s.MaxBody < KiB {
			v.add(table+".max_body", fmt.Sprintf("%s is too small for a request", s.MaxBody), `write "1MiB"`)
		}
		if v.c.has(table+".max_age") && !s.MaxAge.Off && s.MaxAge.Limit <= 0 {
			v.add(table+".max_age", "would refuse everything", `write "30d", or "off" for captured requests`)
		}
		if v.c.has(table+".tolerance") && !s.Tolerance.Off && s.Tolerance.Limit <= 0 {
			v.add(table+".tolerance", "would refuse everything", `write "5m", or "off" where time does not count`)
		}
		if s.Scheme == schemeHMAC {
			v.required(table, "secret", s.Secret.IsZero(), secretHint)
			v.only(table, "scheme hmac has a secret", "previous_token")
		} else {
			v.required(table, "token", s.Token.IsZero(), secretHint)
			v.only(table, "it is for scheme hmac", "previous_secret")
		}
		if s.Scheme == schemeWeCom {
			v.required(table, "encoding_aes_key", s.EncodingAESKey.IsZero(), secretHint)
		} else if !s.PreviousEncodingAESKey.IsZero() && s.Scheme != "" {
			v.add(table+".previous_encoding_aes_key", "is not used by scheme "+s.Scheme, "remove it")
		}
		for _, k := range s.secrets() {
			v.secret(table+"."+k.key, k.secret)
		}
		if configs[i] = s.unresolved(); s.EncodingAESKey.IsZero() {
			configs[i].EncodingAESKey = nil // it would be the previous one, which is reported
		}
		if s.Secret.IsZero() {
			configs[i].Secret = nil
		}
	}
	for _, p := range receiver.Validate(configs) {
		v.add(fmt.Sprintf("source[%d].%s", p.Source, p.Field), p.What, p.Hint)
	}
}

// keyedSecret is a secret with the key that names it.
type keyedSecret struct {
	key    string
	secret Secret
}

// secrets lists those that are configured: newest first.
func (s *SourceConfig) secrets() []keyedSecret {
	var all []keyedSecret
	for _, k := range []keyedSecret{
		{"token", s.Token},
		{"previous_token", s.PreviousToken},
		{"encoding_aes_key", s.EncodingAESKey},
		{"previous_encoding_aes_key", s.PreviousEncodingAESKey},
		{"secret", s.Secret},
		{"previous_secret", s.PreviousSecret},
	} {
		if !k.secret.IsZero() {
			all = append(all, k)
		}
	}
	return all
}

// unresolved gives the receiver's configuration with the places of the secrets
// in place of them: enough to check everything else.
func (s *SourceConfig) unresolved() receiver.SourceConfig {
	c := receiver.SourceConfig{
		Name: s.Name, ID: s.ID, Path: s.Path, Scheme: s.Scheme, OnRefuse: s.OnRefuse,
		MaxBody: int64(s.MaxBody), Volatile: s.Volatile,
		ReceiveIDs: s.ReceiveIDs, Endpoint: s.Endpoint, Reply: s.Reply, MaxAge: s.MaxAge.Limit.Std(),
		Header: s.Header, IDHeader: s.IDHeader, IDPath: s.IDPath, TypeHeader: s.TypeHeader, TypePath: s.TypePath,
		DefaultType: s.DefaultType, IDScope: s.IDScope,
		Algorithm: s.Algorithm, Encoding: s.Encoding, Prefix: s.Prefix, Separator: s.Separator,
		TimestampHeader: s.TimestampHeader, Signed: s.Signed, Tolerance: s.Tolerance.Limit.Std(),
	}
	if s.Tolerance.Off {
		c.Tolerance = receiver.AgeOff
	}
	if s.MaxAge.Off {
		c.MaxAge = receiver.AgeOff
	}
	for _, k := range s.secrets() {
		k.addTo(&c, k.secret.String())
	}
	return c
}

// addTo puts the text of the secret where the receiver looks for it.
func (k keyedSecret) addTo(c *receiver.SourceConfig, text string) {
	switch k.key {
	case "token", "previous_token":
		c.Token = append(c.Token, text)
	case "secret", "previous_secret":
		c.Secret = append(c.Secret, text)
	default:
		c.EncodingAESKey = append(c.EncodingAESKey, text)
	}
}
