package queue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

// Headers that the server adds to what it reads for us, and its statuses.
const (
	headerStatus  = "Status"
	headerSeq     = "Nats-Sequence"
	headerStored  = "Nats-Time-Stamp"
	headerPending = "Nats-Num-Pending"

	statusEndOfBatch = "204"
	statusNotFound   = "404"

	readTimeout = 10 * time.Second
	directGet   = "$JS.API.DIRECT.GET."

	maxChunk      = 256     // messages read at once
	maxChunkBytes = 8 << 20 // about what a chunk may take in memory
)

// readRequest asks the server for messages of a stream.
type readRequest struct {
	Seq      uint64 `json:"seq,omitempty"`
	Last     string `json:"last_by_subj,omitempty"`
	Next     string `json:"next_by_subj,omitempty"` // the first of this subject, from Seq on
	Batch    int    `json:"batch,omitempty"`
	MaxBytes int    `json:"max_bytes,omitempty"`
}

// Get returns the message at seq. It returns ErrMissing when that is not kept
// or not durable yet, and ErrFormat when it is no event.
func (q *Queue) Get(ctx context.Context, seq uint64) (Message, error) {
	if seq == 0 || seq > q.commit.durable.load() {
		return Message{}, fmt.Errorf("get message %d: %w", seq, ErrMissing)
	}
	m, err := q.readOne(ctx, streamEvents, readRequest{Seq: seq})
	if err != nil {
		return Message{}, fmt.Errorf("get message %d: %w", seq, err)
	}
	msg, err := storedMessage(m)
	if err != nil {
		return Message{}, fmt.Errorf("get message %d: %w", seq, err)
	}
	return msg, nil
}

// readOne reads one message of a stream, or returns ErrMissing.
func (q *Queue) readOne(ctx context.Context, stream string, req readRequest) (*nats.Msg, error) {
	body, err := json.Marshal(req)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	m, err := q.now().read.RequestWithContext(ctx, directGet+stream, body)
	if err != nil {
		return nil, q.closedError(err)
	}
	switch status := m.Header.Get(headerStatus); status {
	case "":
		return m, nil
	case statusNotFound:
		return nil, ErrMissing
	default:
		return nil, fmt.Errorf("%w: server answered status %s", ErrUnavailable, status)
	}
}

// storedMessage decodes what the server read for us.
func storedMessage(m *nats.Msg) (Message, error) {
	seq, err := storedSeq(m)
	if err != nil {
		return Message{}, err
	}
	stored, err := time.Parse(time.RFC3339Nano, m.Header.Get(headerStored))
	if err != nil {
		return Message{}, fmt.Errorf("read time of message %d: %w", seq, err)
	}
	ev, err := decode(m.Header, m.Data)
	if err != nil {
		return Message{}, err
	}
	return Message{Seq: seq, Stored: stored.UTC(), Event: ev}, nil
}

func storedSeq(m *nats.Msg) (uint64, error) {
	seq, err := strconv.ParseUint(m.Header.Get(headerSeq), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read sequence of message: %w", err)
	}
	return seq, nil
}

// readChunk reads at most n messages of EVENTS from sequence lo upwards. It
// stops early at maxChunkBytes, but never before the first message; more says
// that it did.
func (q *Queue) readChunk(ctx context.Context, lo uint64, n int) (msgs []*nats.Msg, more bool, err error) {
	body, err := json.Marshal(readRequest{Seq: lo, Batch: n, MaxBytes: maxChunkBytes})
	if err != nil {
		return nil, false, err
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	inbox := q.now().read.NewInbox()
	sub, err := q.now().read.SubscribeSync(inbox)
	if err != nil {
		return nil, false, q.closedError(err)
	}
	defer func() { err = errors.Join(err, unsubscribe(sub)) }()
	if err := q.now().read.PublishRequest(directGet+streamEvents, inbox, body); err != nil {
		return nil, false, q.closedError(err)
	}
	for {
		m, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return nil, false, q.closedError(err)
		}
		switch status := m.Header.Get(headerStatus); status {
		case "":
			msgs = append(msgs, m)
		case statusNotFound:
			return nil, false, nil
		case statusEndOfBatch:
			return msgs, len(msgs) < n && m.Header.Get(headerPending) != "0", nil
		default:
			return nil, false, fmt.Errorf("%w: server answered status %s", ErrUnavailable, status)
		}
	}
}

func unsubscribe(sub *nats.Subscription) error {
	err := sub.Unsubscribe()
	if errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, nats.ErrBadSubscription) {
		return nil
	}
	return err
}

// Scan calls fn for the durable messages from sequence from (0: the newest)
// down to the oldest, until fn returns false or an error, which Scan returns.
// Messages that are no events are left out and counted in State.Foreign.
func (q *Queue) Scan(ctx context.Context, from uint64, fn func(Message) (bool, error)) error {
	st, err := q.State(ctx)
	if err != nil {
		return fmt.Errorf("scan queue: %w", err)
	}
	hi, n := st.Durable, 32
	if from > 0 {
		hi = min(hi, from)
	}
	for hi >= st.FirstSeq && hi > 0 {
		lo := st.FirstSeq
		if uint64(n) <= hi-lo {
			lo = hi - uint64(n) + 1
		}
		msgs, more, err := q.readChunk(ctx, lo, int(hi-lo)+1)
		if err != nil {
			return fmt.Errorf("scan queue: %w", err)
		}
		if more && lo < hi { // too big to turn round in memory
			n = max(1, len(msgs)/2)
			continue
		}
		if goOn, err := q.backwards(msgs, hi, fn); !goOn || err != nil {
			return err
		}
		hi = lo - 1
		n = min(2*n, maxChunk)
	}
	return nil
}

// backwards calls fn for msgs up to sequence hi, the last first.
func (q *Queue) backwards(msgs []*nats.Msg, hi uint64, fn func(Message) (bool, error)) (goOn bool, err error) {
	for i := len(msgs) - 1; i >= 0; i-- {
		seq, err := storedSeq(msgs[i])
		if err != nil {
			return false, err
		}
		if seq > hi {
			continue
		}
		msg, err := storedMessage(msgs[i])
		if err != nil {
			q.noteForeign(seq, err)
			continue
		}
		if goOn, err := fn(msg); !goOn || err != nil {
			return false, err
		}
	}
	return true, nil
}

// Tail calls fn for every message that becomes durable from now on, in order.
// It returns fn's error, ctx's error when ctx ends, or ErrClosed after Close.
// Messages that are no events are left out and counted in State.Foreign.
func (q *Queue) Tail(ctx context.Context, fn func(Message) error) error {
	return q.tailFrom(ctx, q.commit.durable.load()+1, fn)
}

func (q *Queue) tailFrom(ctx context.Context, next uint64, fn func(Message) error) error {
	for {
		if err := q.commit.durable.wait(ctx, q.closing, next); err != nil {
			return err
		}
		durable := q.commit.durable.load()
		msgs, more, err := q.readChunk(ctx, next, int(min(durable-next+1, maxChunk)))
		if err != nil {
			return fmt.Errorf("tail queue: %w", err)
		}
		last, err := q.forwards(msgs, durable, fn)
		if err != nil {
			return err
		}
		if len(msgs) == 0 || !more && last < next {
			last = durable // what was there is purged
		}
		next = max(next, last+1)
	}
}

// forwards calls fn for msgs up to sequence hi and returns the last sequence.
func (q *Queue) forwards(msgs []*nats.Msg, hi uint64, fn func(Message) error) (last uint64, err error) {
	for _, m := range msgs {
		seq, err := storedSeq(m)
		if err != nil {
			return last, err
		}
		if seq > hi {
			return hi, nil
		}
		last = seq
		msg, err := storedMessage(m)
		if err != nil {
			q.noteForeign(seq, err)
			continue
		}
		if err := fn(msg); err != nil {
			return last, err
		}
	}
	return last, nil
}

// noteForeign counts a stored message that is no event.
func (q *Queue) noteForeign(seq uint64, err error) {
	q.foreign.Add(1)
	q.log.Error("stored message is no event", "seq", seq, "error", err)
}
