package app

import (
	"fmt"
	"strings"
)

// OperatorError is an error that somebody at the machine can do something
// about. What and Where make one sentence, Hint says what to do. It never holds
// a secret or a payload.
type OperatorError struct {
	What  string // what is wrong, without a full stop
	Where string // the file, address or directory that it is about; may be empty
	Hint  string // what to do; may be empty
	Err   error  // the cause; may be nil
}

// Error gives the sentence without the hint.
func (e *OperatorError) Error() string {
	var b strings.Builder
	b.WriteString(e.What)
	if e.Where != "" {
		b.WriteString(": " + e.Where)
	}
	if e.Err != nil {
		b.WriteString(": " + e.Err.Error())
	}
	return b.String()
}

// Unwrap gives the cause.
func (e *OperatorError) Unwrap() error { return e.Err }

// Problem is one thing that is wrong in a configuration.
type Problem struct {
	Path string `json:"path"` // where in the configuration: handler[2] "crm".timeout
	Line int    `json:"line"` // of the file; 0 when no line is to blame
	What string `json:"what"` // what is wrong
	Hint string `json:"hint"` // what to write; may be empty
}

// String gives the problem on one line.
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.Path)
	if p.Line > 0 {
		if p.Path != "" {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "line %d", p.Line)
	}
	b.WriteString(": " + p.What)
	if p.Hint != "" {
		b.WriteString("; " + p.Hint)
	}
	return b.String()
}

// ConfigError is returned when a configuration cannot be used. It holds all
// that is wrong with it, in the order of the file.
type ConfigError struct {
	File     string // empty for a configuration that is not a file
	Problems []Problem
}

// Error gives one line that counts the problems, and one line for each.
func (e *ConfigError) Error() string {
	var b strings.Builder
	count := "1 problem"
	if n := len(e.Problems); n != 1 {
		count = fmt.Sprintf("%d problems", n)
	}
	b.WriteString(count)
	if e.File != "" {
		b.WriteString(" in " + e.File)
	}
	for _, p := range e.Problems {
		b.WriteString("\n  " + p.String())
	}
	return b.String()
}
