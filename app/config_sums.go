package app

import (
	"fmt"
	"math"
	"time"

	"idemd/consumer"
)

// windowSlack is for what no other part of the sum covers: clocks that differ,
// a start, a record that is written late.
const windowSlack = time.Hour

// WindowSum is what the cold window of a handler must be at least, for the events
// of one source, part by part.
type WindowSum struct {
	Handler     string   `json:"handler"`
	Source      string   `json:"source"`
	RetrySpan   Duration `json:"retry_span"`   // the platform's, by itself or by hand
	SpanOrigin  string   `json:"span_origin"`  // configured, documented or unknown (then it is 0)
	Platform    string   `json:"platform"`     // empty when it is not known
	Retries     Duration `json:"retries"`      // all waits between attempts, with their jitter
	Wait        Duration `json:"wait"`         // the longest one that an answer can ask for
	ReplayLimit Duration `json:"replay_limit"` //
	Timeout     Duration `json:"timeout"`      // the longest run
	Slack       Duration `json:"slack"`
	Needed      Duration `json:"needed"` // all of that
	Cold        Duration `json:"cold"`   // as configured
}

// MarshalText writes the duration as the configuration has it.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// String gives the sum for people.
func (s *WindowSum) String() string {
	span := fmt.Sprintf("%s platform retries (%s)", s.RetrySpan, s.SpanOrigin)
	if s.SpanOrigin == spanUnknown {
		span = "0s platform retries (unknown: write the source's retry_span)"
	}
	return fmt.Sprintf("%s + %s own retries + %s wait + %s replay_limit + %s timeout + %s slack = %s",
		span, s.Retries, s.Wait, s.ReplayLimit, s.Timeout, s.Slack, s.Needed)
}

// windowSum adds up for one handler and one of its sources.
func (c *Config) windowSum(h *HandlerConfig, s *SourceConfig) WindowSum {
	span := s.retrySpan()
	sum := WindowSum{
		Handler: h.Name, Source: s.Name, RetrySpan: Duration(span.Reach), SpanOrigin: span.Origin, Platform: span.name,
		Wait: Duration(consumer.MaxWait), ReplayLimit: c.Windows.ReplayLimit, Timeout: h.Timeout, Slack: Duration(windowSlack),
		Cold: h.Cold,
	}
	setIfZero(&sum.Cold, c.Windows.Cold)
	for _, d := range h.Retry {
		sum.Retries = plus(sum.Retries, d, Duration(float64(d)*consumer.DefaultJitter))
	}
	sum.Needed = plus(sum.RetrySpan, sum.Retries, sum.Wait, sum.ReplayLimit, sum.Timeout, sum.Slack)
	return sum
}

// plus adds durations that are not negative. What is too long is the longest one.
func plus(parts ...Duration) Duration {
	var sum Duration
	for _, d := range parts {
		if sum += d; sum < 0 {
			return math.MaxInt64
		}
	}
	return sum
}

// WindowSums gives the sum for every handler that takes claims, and each of its
// sources.
func (c *Config) WindowSums() []WindowSum {
	var all []WindowSum
	for i := range c.Handlers {
		for _, s := range c.sourcesOf(i) {
			all = append(all, c.windowSum(&c.Handlers[i], s))
		}
	}
	return all
}

// sourcesOf gives the sources of the i-th handler; none when its runs have no
// record that a window could keep.
func (c *Config) sourcesOf(i int) []*SourceConfig {
	h := &c.Handlers[i]
	if h.Effect == "idempotent" {
		return nil
	}
	var all []*SourceConfig
	for _, name := range h.Sources {
		for j := range c.Sources {
			if c.Sources[j].Name == name {
				all = append(all, &c.Sources[j])
				break
			}
		}
	}
	return all
}

// defaultHistory is [queue] history when nothing asks for more.
const defaultHistory = Duration(15 * day)

// HistorySum is what [queue] history must be at least.
type HistorySum struct {
	ReplayLimit Duration `json:"replay_limit"`
	Slack       Duration `json:"slack"`
	Needed      Duration `json:"needed"` // both
	History     Duration `json:"history"`
}

// String gives the sum for people.
func (s HistorySum) String() string {
	return fmt.Sprintf("%s replay_limit + %s = %s", s.ReplayLimit, s.Slack, s.Needed)
}

// HistorySum adds up what handled events are kept for. Without [queue] history it
// is 15 days, or what is needed.
func (c *Config) HistorySum() HistorySum {
	s := HistorySum{ReplayLimit: c.Windows.ReplayLimit, Slack: Duration(day), History: c.Queue.History}
	s.Needed = plus(s.ReplayLimit, s.Slack)
	setIfZero(&s.History, max(defaultHistory, s.Needed))
	return s
}

// windows checks hot, and the sum rule for each cold that there is.
func (v *validation) windows() {
	c := v.c
	if c.Windows.Hot <= 0 {
		v.add("windows.hot", "must be longer than nothing", `write "2h"`)
	} else if c.Windows.Hot > c.Windows.Cold && !v.broken("windows.cold") {
		v.add("windows.hot", fmt.Sprintf("%s is longer than windows.cold, %s", c.Windows.Hot, c.Windows.Cold),
			fmt.Sprintf("write at most %q", c.Windows.Cold))
	}
	for i := range c.Sources {
		if at := fmt.Sprintf("source[%d].retry_span", i); c.has(at) && c.Sources[i].RetrySpan <= 0 {
			v.add(at, "is no time at all", `write for how long the platform goes on, such as "3d"`)
		}
	}
	if v.broken("windows.replay_limit") || c.Windows.ReplayLimit <= 0 {
		return
	}
	longest := map[string]WindowSum{} // path of the cold that is too short -> the sum that asks for most
	for i := range c.Handlers {
		table := fmt.Sprintf("handler[%d]", i)
		path := "windows.cold"
		if c.has(table + ".cold") {
			path = table + ".cold"
		}
		if v.broken(table+".timeout") || v.broken(table+".retry") || v.broken(path) {
			continue
		}
		for _, s := range c.sourcesOf(i) {
			sum := c.windowSum(&c.Handlers[i], s)
			if sum.Cold < sum.Needed && sum.Needed > longest[path].Needed {
				longest[path] = sum
			}
		}
	}
	for path, sum := range longest { // the order does not matter: problems are sorted
		v.add(path, fmt.Sprintf("%s is shorter than what handler %q needs for source %q: %s", sum.Cold, sum.Handler, sum.Source, &sum),
			fmt.Sprintf("write at least %q, or lower replay_limit", sum.Needed))
	}
}
