package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// show prints v: as JSON, or by text for people.
func (c *cli) show(v any, text func(p *printer)) error {
	if c.output == "json" {
		return c.showJSON(v)
	}
	p := &printer{w: c.stdout}
	text(p)
	return p.err
}

func (c *cli) showJSON(v any) error {
	enc := json.NewEncoder(c.stdout)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// showJSONLine prints v as one line.
func (c *cli) showJSONLine(v any) error {
	enc := json.NewEncoder(c.stdout)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// printer writes lines and keeps the first error.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", args...)
	}
}

// table writes rows in columns. Cells hold no control characters: what comes
// from outside must not move the terminal's cursor.
func (p *printer) table(rows ...[]string) {
	if p.err != nil {
		return
	}
	t := tabwriter.NewWriter(p.w, 0, 8, 2, ' ', 0)
	for _, row := range rows {
		for i := range row {
			row[i] = plain(row[i])
		}
		line := strings.TrimRight(strings.Join(row, "\t"), "\t")
		if _, err := fmt.Fprintln(t, line); err != nil {
			p.err = err
			return
		}
	}
	p.err = t.Flush()
}

// plain makes a text safe for a terminal.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 || r >= 0x7f && r < 0xa0 || r == 0x2028 || r == 0x2029 || r >= 0x202a && r <= 0x202e {
			return '?'
		}
		return r
	}, s)
}

// local writes a time for people, in their zone.
func local(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format("2006-01-02 15:04:05")
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func bytesText(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, names := float64(n)/unit, []string{"KiB", "MiB", "GiB", "TiB"}
	for value >= unit && len(names) > 1 {
		value, names = value/unit, names[1:]
	}
	return fmt.Sprintf("%.1f %s", value, names[0])
}
