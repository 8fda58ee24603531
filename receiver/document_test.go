package receiver

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"idemd/event"
)

func TestParseXML_RefusesWhatCallbacksDoNotUse(t *testing.T) {
	for name, in := range map[string]string{
		"document type":           `<!DOCTYPE a><a/>`,
		"document type in case":   `<!doctype a><a/>`,
		"document type inside":    `<a><!DOCTYPE b></a>`,
		"entity declaration":      `<!ENTITY x "y"><a/>`,
		"unknown entity":          `<a>&x;</a>`,
		"entity without end":      `<a>&amp</a>`,
		"reference to NUL":        `<a>&#0;</a>`,
		"reference to surrogate":  `<a>&#xD800;</a>`,
		"reference past Unicode":  `<a>&#x110000;</a>`,
		"unknown entity in attr":  `<a b="&x;"/>`,
		"instruction":             `<a><?php x?></a>`,
		"late declaration":        ` <?xml version="1.0"?><a/>`,
		"declared GBK":            `<?xml version="1.0" encoding="GBK"?><a/>`,
		"XML 1.1":                 `<?xml version="1.1"?><a/>`,
		"empty declaration":       `<?xml?><a/>`,
		"two roots":               `<a/><b/>`,
		"text before the root":    `x<a/>`,
		"text behind the root":    `<a/>x`,
		"CDATA outside the root":  `<a/><![CDATA[x]]>`,
		"no root":                 `<!-- x -->`,
		"open element":            `<a><b></b>`,
		"wrong end":               `<a></b>`,
		"crossed ends":            `<a><b></a></b>`,
		"end without begin":       `</a>`,
		"end without bracket":     `<a></a`,
		"CDATA without end":       `<a><![CDATA[x]]</a>`,
		"end of CDATA in text":    `<a>]]></a>`,
		"comment without end":     `<a><!-- x</a>`,
		"two hyphens in comment":  `<a><!-- -- --></a>`,
		"text beside elements":    `<a>x<b/></a>`,
		"text behind elements":    `<a><b/>x</a>`,
		"CDATA beside elements":   `<a><b/><![CDATA[x]]></a>`,
		"NUL":                     "<a>\x00</a>",
		"control in CDATA":        "<a><![CDATA[\x01]]></a>",
		"U+FFFF":                  "<a>\uffff</a>",
		"attribute without quote": `<a b=c/>`,
		"attribute without value": `<a b/>`,
		"attributes joined":       `<a b="1"c="2"/>`,
		"bracket in attribute":    `<a b="<"/>`,
		"no name":                 `< a/>`,
		"name with digit first":   `<1a/>`,
	} {
		if _, err := parseXML([]byte(in), payloadLimits()); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestParseXML_GivesTheText(t *testing.T) {
	for in, want := range map[string]string{
		`<a>x</a>`:                             "x",
		`<a/>`:                                 "",
		`<a></a >`:                             "",
		`<a>  </a>`:                            "  ",
		`<a><![CDATA[x]]></a>`:                 "x",
		`<a> <![CDATA[x ]]> </a>`:              "x ",
		`<a><![CDATA[a]]]]><![CDATA[>b]]></a>`: "a]]>b",
		`<a>x<!-- c -->y</a>`:                  "xy",
		`<a>x<![CDATA[<&>]]>y</a>`:             "x<&>y",
		`<a>&lt;&gt;&amp;&quot;&apos;&#65;&#x4e2d;</a>`: "<>&\"'A中",
		"<a>1\r\n2\r3</a>":           "1\n2\n3",
		"<a><![CDATA[1\r\n2]]></a>":  "1\n2",
		`<a b="1" c = '&lt;2'>x</a>`: "x",
		"<?xml version='1.0' encoding='utf-8' standalone='yes' ?>\n<!-- c --><a>x</a>\n": "x",
		`<a>表情😀</a>`: "表情😀",
	} {
		doc, err := parseXML([]byte(in), payloadLimits())
		if err != nil || string(doc.nodes[0].text) != want {
			t.Errorf("%s: %q, %v", in, doc, err)
		}
	}
}

func TestParse_LimitsWorkBeforeAuthentication(t *testing.T) {
	deep := strings.Repeat("<a>", 100_000)
	wide := "<a>" + strings.Repeat("<b/>", 100_000) + "</a>"
	for name, in := range map[string]string{
		"deep XML":       deep,
		"wide XML":       wide,
		"deep JSON":      strings.Repeat(`{"a":`, 100_000),
		"deep arrays":    `{"a":` + strings.Repeat(`[`, 100_000),
		"wide JSON":      `{"a":[` + strings.Repeat("1,", 100_000) + "1]}",
		"many CDATA":     "<a><b>" + strings.Repeat("<![CDATA[x]]>", 80_000) + "</b>" + strings.Repeat("<c/>", 100) + "</a>",
		"invalid UTF-8":  "<a>\xc3\x28</a>",
		"UTF-16":         "\xff\xfe<\x00a\x00/\x00>\x00",
		"nothing":        " \n",
		"only the mark":  "\ufeff",
		"JSON no object": `"x"`,
	} {
		began := time.Now()
		if _, err := parse([]byte(in), envelopeLimits()); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("%s: took %s", name, took)
		}
	}
}

func TestMapping_XMLBecomesJSON(t *testing.T) {
	repeatable := map[string]bool{"L.I": true, "R": true}
	for in, want := range map[string]string{
		`<x><a>1</a><b/><c> </c></x>`:            `{"a":"1","b":"","c":" "}`,
		`<x/>`:                                   `{}`,
		`<x>text</x>`:                            `{}`,
		`<x a="1"><b c="2">3</b></x>`:            `{"b":"3"}`,
		`<x><L><I>1</I></L></x>`:                 `{"L":{"I":["1"]}}`,
		`<x><L><I>1</I><J>2</J><I>3</I></L></x>`: `{"L":{"I":["1","3"],"J":"2"}}`,
		`<x><R><a>1</a></R></x>`:                 `{"R":[{"a":"1"}]}`,
		`<x><u>1</u><v/><u><w>2</w></u></x>`:     `{"u":["1",{"w":"2"}],"v":""}`,
		"<x><a>\"\\/&lt;\t\n\u2028</a></x>":      `{"a":"\"\\/<\t\n` + "\u2028" + `"}`,
		`<x><I>1</I></x>`:                        `{"I":"1"}`,
	} {
		doc, err := parseXML([]byte(in), payloadLimits())
		if err != nil {
			t.Fatal(err)
		}
		got, repeats := doc.appendJSON(nil, repeatable)
		if string(got) != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
		if wantRepeat := strings.Contains(in, "<u>"); wantRepeat != (len(repeats) == 1) || wantRepeat && repeats[0] != "u" {
			t.Errorf("%s: repeats %q", in, repeats)
		}
	}
}

func TestParseJSON_KeepsNumbersAndRepeats(t *testing.T) {
	doc, err := parseJSON([]byte(`{"n":12345678901234567890.0, "e":{}, "s":"aé\n", "l":[1,{"m":null},[2]], "d":1, "d":2, "t":true}`), payloadLimits())
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"n": "12345678901234567890.0", "e": "", "s": "aé", "d": "", "t": "true", "l": "", "x": "", "n.x": ""} {
		if got := doc.field(path); got != want {
			t.Errorf("%s = %q, want %q", path, got, want)
		}
	}
}

// xmlTexts reads the leaves as encoding/xml sees them.
func xmlTexts(in []byte) (texts []string, err error) {
	dec := xml.NewDecoder(bytes.NewReader(in))
	var stack []string
	leaf := false
	for {
		tok, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return texts, nil
		}
		if err != nil {
			return nil, err
		}
		switch tok := tok.(type) {
		case xml.StartElement:
			stack = append(stack, "")
			leaf = true
		case xml.CharData:
			if len(stack) > 0 {
				stack[len(stack)-1] += string(tok)
			}
		case xml.EndElement:
			if leaf {
				texts = append(texts, strings.Trim(stack[len(stack)-1], " \t\r\n"))
			}
			stack, leaf = stack[:len(stack)-1], false
		}
	}
}

func FuzzParseXML(f *testing.F) {
	for _, payload := range samples(f) {
		f.Add([]byte(payload))
	}
	f.Add([]byte("<a b='1'> <![CDATA[x]]> &#65;</a>"))
	f.Fuzz(func(t *testing.T, in []byte) {
		if !utf8.Valid(in) {
			return
		}
		doc, err := parseXML(in, payloadLimits())
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatalf("error of another class: %v", err)
			}
			return
		}
		want, err := xmlTexts(in)
		if err != nil {
			t.Fatalf("encoding/xml refuses what was accepted: %v", err)
		}
		var got []string
		for i := range doc.nodes {
			if doc.nodes[i].child == 0 {
				got = append(got, string(bytes.Trim(doc.nodes[i].text, " \t\r\n")))
			}
		}
		if strings.Join(got, "\x00") != strings.Join(want, "\x00") {
			t.Fatalf("texts %q, encoding/xml %q", got, want)
		}
	})
}

func FuzzParseJSON(f *testing.F) {
	f.Add([]byte(`{"a":[1,{"b":"\u00e9"},[]],"c":null,"d":-1.5e+3}`))
	f.Add([]byte(`{"a":{"a":{}},"b":"\"","c":[[1],[2]]}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		_, err := parseJSON(in, limits{depth: 10_000, nodes: 1 << 20})
		isObject := json.Valid(in) && len(trimBlanks(in)) > 0 && trimBlanks(in)[0] == '{'
		if (err == nil) != isObject {
			t.Fatalf("accepted: %t, encoding/json: %t", err == nil, isObject)
		}
	})
}

// FuzzMapping holds the mapping to its promise: what comes out is JSON, and
// reads back as the same document.
func FuzzMapping(f *testing.F) {
	for _, payload := range samples(f) {
		f.Add([]byte(payload))
	}
	f.Add([]byte("<x><a>1</a><b/><a><c>\"</c></a></x>"))
	f.Fuzz(func(t *testing.T, in []byte) {
		doc, err := parse(in, payloadLimits())
		if err != nil || doc.nodes[0].name == nil || doc.nodes[0].child == 0 {
			return
		}
		out, repeats := doc.appendJSON(nil, wecomRepeatable)
		if !json.Valid(out) {
			t.Fatalf("no JSON: %s", out)
		}
		volatile := []string{"WelcomeCode", "a.c", "a"}
		if got, want := newFingerprinter(volatile).of(doc, wecomRepeatable), event.NewFingerprintRules(volatile).Of(out); got != want {
			t.Fatalf("fingerprint %x, of the JSON %x: %s", got, want, out)
		}
		back, err := parse(out, payloadLimits())
		if err != nil {
			t.Fatalf("cannot read %s: %v", out, err)
		}
		if got, want := back.digest(), doc.digest(); got != want {
			t.Fatalf("digest changed by %s", out)
		}
		if _, more := back.appendJSON(nil, wecomRepeatable); len(more) != len(repeats) {
			t.Fatalf("repeats %q became %q", repeats, more)
		}
	})
}

func FuzzEnvelope(f *testing.F) {
	v := loadVectors(f)
	for _, p := range append(v.Positive, v.Negative...) {
		if p.Request != nil && p.Request.BodyRepeat == nil {
			f.Add([]byte(p.Request.Body))
		}
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		encrypt, err := parseWecomEnvelope(in)
		if err == nil && len(encrypt) == 0 || err != nil && !errors.Is(err, ErrMalformed) {
			t.Fatalf("%q, %v", encrypt, err)
		}
	})
}

// FuzzDecrypt gives frames that are authentic but made by somebody else's code.
func FuzzDecrypt(f *testing.F) {
	key, err := newWecomKey(wecomSource().EncodingAESKey[0])
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte("0123456789abcdef\x00\x00\x00\x02hiww0"), byte(2))
	f.Fuzz(func(t *testing.T, frame []byte, pad byte) {
		for len(frame)%wecomBlock != 0 {
			frame = append(frame, pad)
		}
		encrypt := sealRaw(key, frame)
		message, receiveID, err := key.decrypt([]byte(encrypt))
		if err == nil && len(message)+len(receiveID)+20 >= len(frame) {
			t.Fatalf("%d bytes out of %d", len(message)+len(receiveID), len(frame))
		}
	})
}
