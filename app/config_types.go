package app

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Duration is a length of time as it stands in the configuration: "10s", "1h30m",
// "15d", "1d12h". A day has 24 hours.
type Duration time.Duration

const day = 24 * time.Hour

// Std gives it as the standard library's type.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String gives the shortest text that ParseDuration reads as d.
func (d Duration) String() string {
	std := d.Std()
	if std == 0 {
		return "0s"
	}
	var b strings.Builder
	if std < 0 {
		return std.String()
	}
	if days := std / day; days > 0 {
		fmt.Fprintf(&b, "%dd", days)
		std %= day
	}
	if std > 0 {
		text := std.String()
		if strings.HasSuffix(text, "m0s") {
			text = strings.TrimSuffix(text, "0s")
		}
		if strings.HasSuffix(text, "h0m") {
			text = strings.TrimSuffix(text, "0m")
		}
		b.WriteString(text)
	}
	return b.String()
}

// ParseDuration reads what time.ParseDuration reads, and days: "30d", "1d12h".
// It takes no negative ones.
func ParseDuration(s string) (Duration, error) {
	rest, days := s, 0
	if head, tail, found := strings.Cut(s, "d"); found {
		n, err := strconv.ParseUint(head, 10, 31)
		if err != nil {
			return 0, fmt.Errorf("parse duration %q: days are a whole number before the d", s)
		}
		if n > uint64(math.MaxInt64/day) {
			return 0, fmt.Errorf("parse duration %q: too long", s)
		}
		rest, days = tail, int(n)
		if rest == "" {
			return Duration(time.Duration(days) * day), nil
		}
	}
	d, err := time.ParseDuration(rest)
	if err != nil {
		return 0, fmt.Errorf("parse duration %q: not a number with a unit", s)
	}
	if strings.ContainsAny(rest, "+-") {
		return 0, fmt.Errorf("parse duration %q: it has a sign", s)
	}
	if d > math.MaxInt64-time.Duration(days)*day {
		return 0, fmt.Errorf("parse duration %q: too long", s)
	}
	return Duration(time.Duration(days)*day + d), nil
}

func (d *Duration) fromTOML(n *node) (what, hint string) {
	hint = `write a number and a unit (ms, s, m, h, d), such as "30s", "1h30m" or "15d"`
	if n.kind != kindText {
		return "must be a duration in quotes, not " + n.kind.String(), hint
	}
	v, err := ParseDuration(n.text)
	if err != nil {
		return fmt.Sprintf("%q is not a duration", n.text), hint
	}
	*d = v
	return "", ""
}

// Size is a number of bytes as it stands in the configuration: "20GiB", "512KiB".
type Size int64

// The units of a Size.
const (
	Byte Size = 1
	KiB       = 1024 * Byte
	MiB       = 1024 * KiB
	GiB       = 1024 * MiB
	TiB       = 1024 * GiB
)

// String gives the size in the largest unit that divides it.
func (s Size) String() string {
	for _, u := range sizeUnits() {
		if s != 0 && s%u.size == 0 {
			return strconv.FormatInt(int64(s/u.size), 10) + u.name
		}
	}
	return "0B"
}

type sizeUnit struct {
	name string
	size Size
}

// sizeUnits is in the order in which their names may be cut off a text.
func sizeUnits() []sizeUnit {
	return []sizeUnit{{"TiB", TiB}, {"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB}, {"B", Byte}}
}

// ParseSize reads a whole number with one of the units B, KiB, MiB, GiB, TiB.
func ParseSize(s string) (Size, error) {
	for _, u := range sizeUnits() {
		digits, found := strings.CutSuffix(s, u.name)
		if !found {
			continue
		}
		n, err := strconv.ParseUint(strings.TrimRight(digits, " "), 10, 63)
		if err != nil || Size(n) > math.MaxInt64/u.size {
			return 0, fmt.Errorf("parse size %q: not a whole number before %s", s, u.name)
		}
		return Size(n) * u.size, nil
	}
	return 0, fmt.Errorf("parse size %q: no unit", s)
}

func (s *Size) fromTOML(n *node) (what, hint string) {
	hint = `write a whole number and a unit (B, KiB, MiB, GiB, TiB), such as "512MiB"`
	if n.kind != kindText {
		return "must be a size in quotes, not " + n.kind.String(), hint
	}
	v, err := ParseSize(n.text)
	if err != nil {
		return fmt.Sprintf("%q is not a size", n.text), hint
	}
	*s = v
	return "", ""
}

// Rate is a number of events per second.
type Rate float64

// The bounds of a Rate that is set.
const (
	minRate Rate = 0.001
	maxRate Rate = 1e6
)

func (r *Rate) fromTOML(n *node) (what, hint string) {
	const help = "write the number of events in a second, such as 20 or 0.5"
	if n.kind != kindInteger && n.kind != kindFloat {
		return "must be a number, not " + n.kind.String(), help
	}
	v, err := strconv.ParseFloat(strings.ReplaceAll(n.text, "_", ""), 64)
	if err != nil || !(Rate(v) >= minRate && Rate(v) <= maxRate) {
		return fmt.Sprintf("%s is not between %v and 1000000", n.text, minRate), help
	}
	*r = Rate(v)
	return "", ""
}

// Age is a Duration that can be switched off.
type Age struct {
	Limit Duration // zero: not set
	Off   bool     // written as "off": there is no limit
}

// String gives the text that the configuration reads as a.
func (a Age) String() string {
	if a.Off {
		return "off"
	}
	return a.Limit.String()
}

func (a *Age) fromTOML(n *node) (what, hint string) {
	if n.kind == kindText && n.text == "off" {
		*a = Age{Off: true}
		return "", ""
	}
	*a = Age{}
	if what, hint = a.Limit.fromTOML(n); what != "" {
		hint += `, or "off"`
	}
	return what, hint
}
