package queue

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
)

// Error codes of JetStream (nats-server, errors.json).
const (
	codeInsufficientResources = 10023
	codeStorageExceeded       = 10047
	codeStoreFailed           = 10077
)

// pubAck is the server's answer to a published message.
type pubAck struct {
	Stream string    `json:"stream"`
	Seq    uint64    `json:"seq"`
	Error  *apiError `json:"error"`
}

// apiError is how the server says no.
type apiError struct {
	Code        int    `json:"err_code"`
	Description string `json:"description"`
}

func (e *apiError) Error() string { return fmt.Sprintf("%s (%d)", e.Description, e.Code) }

// onAck takes an acknowledgement, however late it comes.
func (c *committer) onAck(m *nats.Msg) {
	id, i, ok := parseAckSubject(m.Subject)
	if !ok {
		return
	}
	stream, seq, err := parsePubAck(m)
	if err == nil {
		c.touch()
		if stream == streamEvents {
			c.noteWritten(seq)
		}
	}
	c.settle(id, i, seq, err)
}

func parseAckSubject(subject string) (id uint64, i int, ok bool) {
	group, index, _ := strings.Cut(strings.TrimPrefix(subject, ackPrefix), ".")
	id, err := strconv.ParseUint(group, 10, 64)
	i, ierr := strconv.Atoi(index)
	return id, i, err == nil && ierr == nil && i >= 0
}

// parsePubAck returns where the message was stored, or why it was not.
func parsePubAck(m *nats.Msg) (stream string, seq uint64, err error) {
	if status := m.Header.Get("Status"); status != "" {
		return "", 0, fmt.Errorf("%w: server answered status %s", ErrUnavailable, status)
	}
	var ack pubAck
	if err := json.Unmarshal(m.Data, &ack); err != nil {
		return "", 0, fmt.Errorf("%w: read acknowledgement: %w", ErrUnavailable, err)
	}
	switch {
	case ack.Error != nil && isFull(ack.Error):
		return "", 0, fmt.Errorf("%w: %w", ErrFull, ack.Error)
	case ack.Error != nil:
		return "", 0, fmt.Errorf("%w: %w", ErrUnavailable, ack.Error)
	case ack.Seq == 0:
		return "", 0, fmt.Errorf("%w: acknowledgement without a sequence", ErrUnavailable)
	}
	return ack.Stream, ack.Seq, nil
}

// isFull tells a full stream from other failures to store, which share a code.
func isFull(e *apiError) bool {
	switch e.Code {
	case codeInsufficientResources, codeStorageExceeded:
		return true
	case codeStoreFailed:
		return strings.HasPrefix(e.Description, "maximum ")
	}
	return false
}
