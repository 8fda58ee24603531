package event

import "strconv"

// HasLoneSurrogate reports whether JSON text escapes half of a surrogate pair
// ("\ud800"). Such text is valid JSON that means no character: decoders put
// U+FFFD in its place, and so make different ids and payloads equal.
func HasLoneSurrogate(json []byte) bool {
	for i := 0; i < len(json); i++ {
		if json[i] != '\\' {
			continue
		}
		switch unit := escapedUnit(json[i:]); {
		case isHigh(unit):
			if low := escapedUnit(json[i+6:]); low < 0xdc00 || low > 0xdfff {
				return true
			}
			i += 11
		case unit >= 0xdc00 && unit <= 0xdfff:
			return true
		default:
			i++ // the escaped character, which may be a backslash
		}
	}
	return false
}

func isHigh(unit int) bool { return unit >= 0xd800 && unit <= 0xdbff }

// escapedUnit gives the code unit of the \uXXXX at the beginning of b; -1 when
// there is none.
func escapedUnit(b []byte) int {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return -1
	}
	unit, err := strconv.ParseUint(string(b[2:6]), 16, 32)
	if err != nil {
		return -1
	}
	return int(unit)
}
