package consumer

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"idemd/dedup"
)

// Class is what an answer says about the effect. The zero value is no class.
type Class uint8

// The classes.
const (
	Done      Class = iota + 1 // the effect happened
	NoEffect                   // it did not happen; run again
	Permanent                  // it did not and will not happen: a dead letter
	Wait                       // it did not happen; the handler says when to run again
	Unknown                    // nobody knows; the handler's effect decides
)

var classNames = [...]string{"", "done", "no-effect", "permanent", "wait", "unknown"}

// String gives the class's name as it stands in the configuration, in logs and
// in metrics.
func (c Class) String() string {
	if int(c) < len(classNames) {
		return classNames[c]
	}
	return "class(" + strconv.Itoa(int(c)) + ")"
}

// Answer is the outcome of one attempt.
type Answer struct {
	Class  Class
	Reason dedup.Reason // why it is not Done; neither payload nor secret
	// Endless: the answer says nothing about this event (a rotated token, a
	// handler that is down). It uses up no attempt: only the replay limit ends the
	// run.
	Endless bool
	After   time.Duration // Wait: how long, 0 when the handler did not say

	// Hearsay: the Wait may come from a proxy that had forwarded the request. An
	// irrevocable run takes it for Unknown.
	Hearsay bool
}

// rule classifies the statuses from..to.
type rule struct {
	from, to int
	class    Class
	endless  bool
}

// statusRules classify an HTTP status; the first match counts, no match is
// Unknown. The handler may really have done it when it answers one of the
// Unknown ones: 408 and 425 come from proxies, 409 and 423 from a run that is
// still going on. 401 to 405 come from a rotated token or a deploy, which must
// not dead-letter a day's events.
var statusRules = [...]rule{
	{from: 200, to: 299, class: Done},
	{from: 100, to: 199, class: Permanent},
	{from: 300, to: 399, class: Permanent},
	{from: 401, to: 401, class: NoEffect, endless: true},
	{from: 403, to: 405, class: NoEffect, endless: true},
	{from: 408, to: 409, class: Unknown},
	{from: 423, to: 423, class: Unknown},
	{from: 425, to: 425, class: Unknown},
	{from: 400, to: 499, class: Permanent},
	{from: 500, to: 599, class: Unknown},
}

// Reply is what counts of an HTTP handler's response.
type Reply struct {
	Status     int
	RetryAfter string // the header Retry-After
	Outcome    string // the header Idemd-Outcome: the handler itself says what has happened
	TrustWait  bool   // nothing stands between us and the handler that could ask us to wait
	Now        time.Time
}

// Classify says what a reply means. Own holds the handler's own rules, which go
// before all others. Idemd-Outcome counts where the status is a refusal (429) or
// a failure (5xx): no-effect, done or permanent; other values say nothing.
func Classify(r Reply, own map[int]Class) Answer {
	a := Answer{Class: Unknown}
	if class, ok := own[r.Status]; ok {
		a.Class = class
	} else if said, ok := r.outcome(); ok {
		a = said
	} else if i := slices.IndexFunc(statusRules[:], func(s rule) bool { return s.from <= r.Status && r.Status <= s.to }); i >= 0 {
		a.Class, a.Endless = statusRules[i].class, statusRules[i].endless
	}
	if a.Class != Done {
		a.Reason = dedup.Reason{Code: "http-" + strconv.Itoa(r.Status), Detail: statusDetail(r.Status)}
	}
	return a
}

// outcome is what the headers say where the status alone says too little.
func (r Reply) outcome() (Answer, bool) {
	if r.Status != http.StatusTooManyRequests && r.Status/100 != 5 {
		return Answer{}, false
	}
	switch r.Outcome {
	case Done.String():
		return Answer{Class: Done}, true
	case Permanent.String():
		return Answer{Class: Permanent}, true
	}
	sure := r.Outcome == NoEffect.String()
	after, says := ParseRetryAfter(r.RetryAfter, r.Now)
	if r.Status == http.StatusTooManyRequests || r.Status == http.StatusServiceUnavailable && says {
		return Answer{Class: Wait, After: after, Hearsay: !sure && !r.TrustWait}, true
	}
	return Answer{Class: NoEffect}, sure
}

// ParseRetryAfter reads the value of a Retry-After header: seconds, or an HTTP
// date. The wait that it gives is between a second, also for a date that is
// past, and an hour. It is false for anything else.
func ParseRetryAfter(value string, now time.Time) (time.Duration, bool) {
	value = strings.TrimSpace(value)
	if value == "" {
		return 0, false
	}
	if strings.Trim(value, "0123456789") == "" {
		seconds, err := strconv.ParseUint(value, 10, 31)
		if err != nil { // too many digits
			return MaxWait, true
		}
		return min(max(time.Duration(seconds)*time.Second, minWait), MaxWait), true
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	return min(max(at.Sub(now), minWait), MaxWait), true
}

func statusDetail(status int) string {
	if text := http.StatusText(status); text != "" {
		return fmt.Sprintf("answered %d %s", status, text)
	}
	return fmt.Sprintf("answered %d", status)
}

// ParseAnswers reads an HTTP handler's own rules, status to class ("409" =
// "done"). The error names every entry that is wrong.
func ParseAnswers(answers map[string]string) (map[int]Class, error) {
	return parseAnswers(answers, 100, 599, "a status")
}

// parseAnswers reads rules for the numbers from..to, which are called what.
func parseAnswers(answers map[string]string, from, to int, what string) (map[int]Class, error) {
	own := make(map[int]Class, len(answers))
	var problems []string
	for text, name := range answers {
		number, err := strconv.Atoi(text)
		if err != nil || number < from || number > to {
			problems = append(problems, fmt.Sprintf("%q is not %s from %d to %d", text, what, from, to))
			continue
		}
		switch name {
		case Done.String():
			own[number] = Done
		case NoEffect.String():
			own[number] = NoEffect
		case Permanent.String():
			own[number] = Permanent
		case Unknown.String():
			own[number] = Unknown
		default:
			problems = append(problems, fmt.Sprintf("%q = %q: write done, no-effect, permanent or unknown", text, name))
		}
	}
	if len(problems) > 0 {
		slices.Sort(problems)
		return nil, fmt.Errorf("parse answers: %s", joined(problems))
	}
	return own, nil
}
