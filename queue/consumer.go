package queue

import (
	"context"
	"time"
)

// ConsumerConfig says what one handler gets.
type ConsumerConfig struct {
	Handler       string        // handler id
	Sources       []string      // source ids; all when empty
	Start         uint64        // first stream sequence to deliver
	AckWait       time.Duration // a delivery without Ack or InProgress for this long comes again; 60 s when zero
	MaxAckPending int           // open deliveries at most; 1000 when zero
}

// Consumer hands a handler its events.
type Consumer struct{}

// Delivery is one delivery of a message to a handler.
type Delivery struct {
	Message
	Redelivered bool // it was delivered before
}

// Consume makes the handler's consumer anew: it starts at cfg.Start.
func (q *Queue) Consume(ctx context.Context, cfg ConsumerConfig) (*Consumer, error) {
	return nil, ErrUnavailable
}

// Next waits for the next delivery whose sequence is durable.
func (c *Consumer) Next(ctx context.Context) (*Delivery, error) { return nil, ErrClosed }

// Pending returns how many messages Next has not returned yet.
func (c *Consumer) Pending(ctx context.Context) (uint64, error) { return 0, ErrClosed }

// Stop ends deliveries.
func (c *Consumer) Stop() {}

// Ack says that the delivery is settled.
func (d *Delivery) Ack() error { return nil }

// Nak asks for the delivery again after delay.
func (d *Delivery) Nak(delay time.Duration) error { return nil }

// InProgress starts AckWait anew.
func (d *Delivery) InProgress() error { return nil }
