package event_test

import (
	"testing"

	"idemd/event"
)

func TestFingerprint_ComparesJSONByValue(t *testing.T) {
	rules := event.NewFingerprintRules([]string{"Token", "info.at"})
	base := `{"a":1,"b":["x",{"c":null}],"info":{"at":5,"by":"u"},"Token":"t1"}`
	for _, c := range []struct {
		name, body string
		differs    bool
	}{
		{"same", base, false},
		{"order and blanks", `{ "b":["x", {"c":null}], "Token":"t1", "info":{"by":"u","at":5}, "a":1 }`, false},
		{"volatile members", `{"a":1,"b":["x",{"c":null}],"info":{"at":6,"by":"u"}}`, false},
		{"value", `{"a":2,"b":["x",{"c":null}],"info":{"at":5,"by":"u"},"Token":"t1"}`, true},
		{"number as written", `{"a":1.0,"b":["x",{"c":null}],"info":{"at":5,"by":"u"}}`, true},
		{"number or string", `{"a":"1","b":["x",{"c":null}],"info":{"at":5,"by":"u"}}`, true},
		{"order of an array", `{"a":1,"b":[{"c":null},"x"],"info":{"at":5,"by":"u"}}`, true},
		{"nesting", `{"a":1,"b":["x"],"c":null,"info":{"at":5,"by":"u"}}`, true},
		{"big numbers", `{"a":9007199254740993,"b":["x",{"c":null}],"info":{"at":5,"by":"u"}}`, true},
		{"same name elsewhere", `{"a":1,"b":["x",{"c":null}],"info":{"at":5,"by":"u","Token":"t"}}`, true},
		{"not JSON", `{"a":1`, true},
	} {
		if got := rules.Of([]byte(base)).Differs(rules.Of([]byte(c.body))); got != c.differs {
			t.Errorf("%s: differs %v", c.name, got)
		}
	}
	big := `{"id":9007199254740992}`
	if !rules.Of([]byte(big)).Differs(rules.Of([]byte(`{"id":9007199254740993}`))) {
		t.Error("numbers over 2^53 are rounded") // case 93
	}
}

// A name whose length is the code of a marker must not read as one.
func TestFingerprint_LengthsAreNotMarkers(t *testing.T) {
	rules := event.NewFingerprintRules(nil)
	long := make([]byte, 101) // 'e'
	for i := range long {
		long[i] = 'k'
	}
	a := rules.Of([]byte(`[{},{"` + string(long) + `":1}]`))
	b := rules.Of([]byte(`[{"` + string(long) + `":1},{}]`))
	if !a.Differs(b) {
		t.Error("two payloads have one canonical form")
	}
}

// Case 102: other rules are no mismatch.
func TestFingerprint_OtherRulesNeverDiffer(t *testing.T) {
	a := event.NewFingerprintRules(nil).Of([]byte(`{"a":1}`))
	b := event.NewFingerprintRules([]string{"b"}).Of([]byte(`{"a":2}`))
	if a.Differs(b) || a.Differs(event.Fingerprint{}) || (event.Fingerprint{}).Differs(a) {
		t.Error("fingerprints of different rules were compared")
	}
	if event.NewFingerprintRules([]string{"a", "b"}).Of(nil).Rules != event.NewFingerprintRules([]string{"b", "a"}).Of(nil).Rules {
		t.Error("the order of volatile paths counts")
	}
}

func TestHasLoneSurrogate(t *testing.T) {
	for text, want := range map[string]bool{
		`{"a":"\ud83d\ude00"}`: false, `"\uD83D\uDE00 \u4f01"`: false, `"\\ud800"`: false, `"\\\\ud800"`: false, `"\u12"`: false, ``: false,
		`"\ud800"`: true, `"\ud83d\u0041"`: true, `"\ud83dx"`: true, `"\ude00"`: true, `"\\\ud800"`: true, `"\ud83d\ud83d\ude00"`: true, `"\ud83d`: true,
	} {
		if got := event.HasLoneSurrogate([]byte(text)); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
	rules := event.NewFingerprintRules(nil)
	if !rules.Of([]byte(`{"a":"\ud800"}`)).Differs(rules.Of([]byte(`{"a":"\ud801"}`))) {
		t.Error("two payloads that decoders make equal have one fingerprint")
	}
}

func FuzzFingerprint(f *testing.F) {
	f.Add([]byte(`{"a":[1,"x",null,true,false,{"b":1.5e3}]}`))
	f.Add([]byte(`{"a":1} {"b":2}`))
	rules := event.NewFingerprintRules([]string{"a.b"})
	f.Fuzz(func(t *testing.T, body []byte) {
		if rules.Of(body).Differs(rules.Of(body)) {
			t.Fatal("a payload differs from itself")
		}
	})
}
