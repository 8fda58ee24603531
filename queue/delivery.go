package queue

import (
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"idemd/event"
)

// Message is an event with its place in the queue.
type Message struct {
	Seq    uint64    // stream sequence
	Stored time.Time // when the server stored it, wall clock, UTC
	Event  event.Event
}

// Delivery is one delivery of a message to a handler. It is open until Ack or
// Nak, or until AckWait has passed without InProgress: then it comes again, as
// another Delivery. What is said about a delivery that is no longer open changes
// nothing, or settles the newer one: that is why a claim has to guard it. After
// Restart everything said about an older delivery is ErrUnavailable.
type Delivery struct {
	Message
	Redelivered bool // the message was delivered before

	q     *Queue
	conn  *nats.Conn
	reply string
	size  int // bytes of the body, while it waits for Next
}

// Ack says that the message is settled and must not come again. It is not
// durable: after a crash the message may come again all the same.
func (d *Delivery) Ack() error { return d.answer("ack", []byte("+ACK")) }

// Nak asks for the message again after delay, at once when it is zero.
func (d *Delivery) Nak(delay time.Duration) error {
	body := []byte("-NAK")
	if delay > 0 {
		body = append(body, ` {"delay": `+strconv.FormatInt(delay.Nanoseconds(), 10)+"}"...)
	}
	return d.answer("nak", body)
}

// InProgress lets AckWait begin anew.
func (d *Delivery) InProgress() error { return d.answer("mark in progress", []byte("+WPI")) }

func (d *Delivery) answer(verb string, body []byte) error {
	if err := d.conn.Publish(d.reply, body); err != nil {
		return fmt.Errorf("%s delivery %d: %w", verb, d.Seq, d.q.closedError(err))
	}
	d.q.commit.touch()
	return nil
}
