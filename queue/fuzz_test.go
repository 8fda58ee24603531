package queue

import (
	"errors"
	"strconv"
	"testing"

	"github.com/nats-io/nats.go"
)

// FuzzPubAck: an acknowledgement names a sequence, or is an error that says
// whether the queue is full.
func FuzzPubAck(f *testing.F) {
	f.Add("", []byte(`{"stream":"EVENTS","seq":5}`))
	f.Add("503", []byte(nil))
	f.Add("", []byte(`{"error":{"code":503,"err_code":10077,"description":"maximum bytes exceeded"}}`))
	f.Add("", []byte(`{"seq":-1}`))
	f.Fuzz(func(t *testing.T, status string, body []byte) {
		m := &nats.Msg{Header: nats.Header{}, Data: body}
		put(m.Header, headerStatus, status)
		_, seq, err := parsePubAck(m)
		if (err == nil) != (seq > 0) || err != nil && !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrFull) {
			t.Fatalf("sequence %d, error %v", seq, err)
		}
	})
}

// FuzzAckSubject: an answer is for the request that it names.
func FuzzAckSubject(f *testing.F) {
	f.Add(ackPrefix + "12.3")
	f.Add(ackPrefix + "12.-3")
	f.Add("")
	f.Fuzz(func(t *testing.T, subject string) {
		id, i, ok := parseAckSubject(subject)
		if !ok {
			return
		}
		again := ackPrefix + strconv.FormatUint(id, 10) + "." + strconv.Itoa(i)
		if id2, i2, ok := parseAckSubject(again); i < 0 || !ok || id2 != id || i2 != i {
			t.Fatalf("%q is %d.%d, %q is %d.%d", subject, id, i, again, id2, i2)
		}
	})
}
