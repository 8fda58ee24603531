package admin

import (
	"errors"
	"net/http"

	"idemd/dedup"
	"idemd/queue"
)

// ErrNotRunning is returned by the client when nobody listens on the socket.
var ErrNotRunning = errors.New("idemd is not running")

// Code names an error for programs. Codes never change their meaning.
type Code string

// The codes.
const (
	CodeBadRequest  Code = "bad_request" // the request makes no sense
	CodeNotFound    Code = "not_found"   // there is no such thing
	CodeAmbiguous   Code = "ambiguous"   // a prefix fits more than one
	CodeRefused     Code = "refused"     // it would break a promise
	CodeConflict    Code = "conflict"    // it is no longer in the state that was shown
	CodeUnavailable Code = "unavailable" // queue or store do not answer; try again
	CodeInternal    Code = "internal"    // see idemd's log
)

func (c Code) status() int {
	switch c {
	case CodeBadRequest:
		return http.StatusBadRequest
	case CodeNotFound:
		return http.StatusNotFound
	case CodeAmbiguous, CodeConflict, CodeRefused:
		return http.StatusConflict
	case CodeUnavailable:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// Error is the error format of the API: {"error": {"code", "message", "hint"}}.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"` // what to do
}

// Error gives the message.
func (e *Error) Error() string { return e.Message }

type errorBody struct {
	Error *Error `json:"error"`
}

// purgedHint says why an event may be gone.
const purgedHint = "what is handled goes when it is older than [queue] history, and earlier where the disk is short; idemd janitor report --task purge"

// asError gives err as the API tells it. What is not meant for callers becomes
// CodeInternal without details.
func asError(err error) *Error {
	var own *Error
	switch {
	case errors.As(err, &own):
		return own
	case errors.Is(err, dedup.ErrFenced):
		return &Error{CodeConflict, "the run is no longer in the state that was shown", "look at it again"}
	case errors.Is(err, queue.ErrMissing):
		return &Error{CodeNotFound, "the queue no longer holds this event", purgedHint}
	case errors.Is(err, dedup.ErrUnavailable), errors.Is(err, queue.ErrUnavailable):
		return &Error{CodeUnavailable, "the disk does not answer; it is not known whether this was done", "try again; see idemd's log"}
	case errors.Is(err, dedup.ErrClosed), errors.Is(err, queue.ErrClosed):
		return &Error{CodeUnavailable, "idemd is stopping", "try again when it has started"}
	}
	return &Error{CodeInternal, "something went wrong inside idemd", "see idemd's log"}
}
