package event

import (
	"encoding/json"
	"strings"
)

// At gives the text of the value at a path in a JSON body: names joined by dots.
// A number keeps its digits. It is false where there is no such value, where it is
// empty or null, and where it is an object or an array.
func At(body []byte, path string) (string, bool) {
	v, err := decodeJSON(body)
	if err != nil {
		return "", false
	}
	for name := range strings.SplitSeq(path, ".") {
		members, ok := v.(map[string]any)
		if !ok {
			return "", false
		}
		v = members[name]
	}
	switch v := v.(type) {
	case string:
		return v, v != ""
	case json.Number:
		return v.String(), true
	case bool:
		if v {
			return "true", true
		}
		return "false", true
	}
	return "", false
}
