package receiver

import (
	"fmt"
	"strings"
	"testing"

	"idemd/event"
)

// msg makes an XML message of the test corp from pairs of name and value.
func msg(pairs ...string) string {
	var b strings.Builder
	b.WriteString("<xml><ToUserName>ww00c0ffee00c0ffee</ToUserName>")
	for i := 0; i < len(pairs); i += 2 {
		fmt.Fprintf(&b, "<%s>%s</%[1]s>", pairs[i], pairs[i+1])
	}
	return b.String() + "</xml>"
}

func sysEvent(name string, more ...string) string {
	return msg(append([]string{
		"FromUserName", "sys", "CreateTime", "1760000000", "MsgType", "event", "Event", name,
	}, more...)...)
}

// approval is a sys_approval_change with one step by boss.
func approval(spNo, status, change, time, stepStatus, stepTime, speech string) string {
	return fmt.Sprintf("<xml><ToUserName>ww00c0ffee00c0ffee</ToUserName><FromUserName>sys</FromUserName><CreateTime>%s</CreateTime>"+
		"<MsgType>event</MsgType><Event>sys_approval_change</Event><ApprovalInfo><SpNo>%s</SpNo><SpStatus>%s</SpStatus>"+
		"<SpRecord><SpStatus>%s</SpStatus><ApproverAttr>1</ApproverAttr><Details><Approver><UserId>u_boss</UserId></Approver>"+
		"<Speech>%s</Speech><SpStatus>%s</SpStatus><SpTime>%s</SpTime></Details></SpRecord>"+
		"<StatuChangeEvent>%s</StatuChangeEvent></ApprovalInfo><AgentID>3010040</AgentID></xml>",
		time, spNo, status, stepStatus, speech, stepStatus, stepTime, change)
}

func TestWecomIdentity_TellsEventsOfOneSecondApart(t *testing.T) { // cases 88 to 98
	meeting := func(outsider string) string {
		return msg("FromUserName", "", "CreateTime", "1760000000", "MsgType", "event", "Event", "meeting_change",
			"ChangeType", "screen_share", "MeetingId", "wcFICTIONmeeting01", "FromUserTmpOpenId", outsider)
	}
	for name, pair := range map[string][2]string{
		"urge and comment on one form":      {approval("1", "1", "5", "1760000000", "1", "0", ""), approval("1", "1", "10", "1760000000", "1", "0", "")},
		"two urges in two seconds":          {approval("1", "1", "5", "1760000000", "1", "0", ""), approval("1", "1", "5", "1760000001", "1", "0", "")},
		"two comments in one second":        {approval("1", "1", "10", "1760000000", "1", "0", "a"), approval("1", "1", "10", "1760000000", "1", "0", "b")},
		"urge and submit":                   {approval("1", "1", "5", "1760000000", "1", "0", ""), approval("1", "1", "1", "1760000000", "1", "0", "")},
		"two outsiders in one meeting":      {meeting("tmpOPEN1"), meeting("tmpOPEN2")},
		"two approvals of one form":         {approval("1", "2", "2", "1760000000", "2", "1759999998", ""), approval("1", "2", "2", "1760000000", "2", "1759999999", "")},
		"the same change of two corps":      {sysEvent("suite_like", "AuthCorpId", "wwA"), sysEvent("suite_like", "AuthCorpId", "wwB")},
		"one MsgId of two senders":          {msg("MsgType", "text", "FromUserName", "a", "MsgId", "1"), msg("MsgType", "text", "FromUserName", "b", "MsgId", "1")},
		"one MsgId of two agents":           {msg("MsgType", "text", "MsgId", "1", "AgentID", "1"), msg("MsgType", "text", "MsgId", "1", "AgentId", "2")},
		"separators inside values":          {msg("MsgType", "text", "FromUserName", "a|b", "MsgId", "c"), msg("MsgType", "text", "FromUserName", "a", "MsgId", "b|c")},
		"values that changed places":        {sysEvent("x", "L", "<I><A>1</A><B>2</B></I><I><A>3</A><B>4</B></I>"), sysEvent("x", "L", "<I><A>1</A><B>4</B></I><I><A>3</A><B>2</B></I>")},
		"two wake-ups of one account":       {sysEvent("kf_msg_or_event", "OpenKfId", "wk1", "Token", "t1"), sysEvent("kf_msg_or_event", "OpenKfId", "wk1", "Token", "t2")},
		"living status 0 and 1":             {sysEvent("living_status_change", "LivingId", "l", "Status", "0"), sysEvent("living_status_change", "LivingId", "l", "Status", "1")},
		"ids that differ in case":           {msg("MsgType", "text", "MsgId", "CAIQa=="), msg("MsgType", "text", "MsgId", "CAIQA==")},
		"ids that differ in the 20th digit": {msg("MsgType", "text", "MsgId", "18446744073709551614"), msg("MsgType", "text", "MsgId", "18446744073709551615")},
	} {
		a, b := identify(t, pair[0]), identify(t, pair[1])
		if a.Event.Type == event.TypeUnparsed || a.Event.Identity.Kind == event.KindUnkeyed {
			t.Errorf("%s: %s %+v", name, a.Event.Type, a.Event.Identity)
		}
		if keyOf(a) == keyOf(b) {
			t.Errorf("%s: one key", name)
		}
	}
}

func TestWecomIdentity_UnitesWhatIsOneEvent(t *testing.T) {
	for name, pair := range map[string][2]string{
		"approval told again later, with a remark": {approval("1", "2", "2", "1760000000", "2", "1759999999", ""), approval("1", "2", "2", "1760000500", "2", "1759999999", "ok")},
		"approval whose step has no time yet":      {approval("1", "1", "1", "1760000000", "1", "0", ""), approval("1", "1", "1", "1760000000", "1", "", "")},
		"SpNoStr instead of SpNo":                  {approval("1", "1", "1", "1760000000", "1", "0", ""), strings.ReplaceAll(approval("1", "1", "1", "1760000000", "1", "0", ""), "SpNo>", "SpNoStr>")},
		"order of members":                         {sysEvent("x", "A", "1", "B", "2"), sysEvent("x", "B", "2", "A", "1")},
		"blanks around values":                     {sysEvent("x", "A", "1"), sysEvent("x", "A", " <![CDATA[1]]>\n")},
		"another WelcomeCode":                      {sysEvent("change_external_contact", "UserID", "u", "WelcomeCode", "a"), sysEvent("change_external_contact", "UserID", "u", "WelcomeCode", "b")},
		"a job's result told twice":                {sysEvent("upload_media_job_finish", "JobId", "j"), strings.Replace(sysEvent("upload_media_job_finish", "JobId", "j"), "1760000000", "1760000007", 1)},
	} {
		a, b := identify(t, pair[0]), identify(t, pair[1])
		if a.Event.Identity.Kind != event.KindNatural || keyOf(a) != keyOf(b) {
			t.Errorf("%s: %q and %q", name, a.Event.Identity, b.Event.Identity)
		}
	}
}

// What the API answers, put into the shape of a callback, is the callback's event.
func TestWecomIdentity_ApprovalCanBeRebuiltFromTheAPI(t *testing.T) {
	callback := identify(t, string(readFile(t, "testdata/wecom/events/20-sys-approval-approved-a.xml")))
	rebuilt := wecomScheme(t, wecomSource()).Identify(Payload{
		Tenant: "ww00c0ffee00c0ffee", ContentType: "application/json",
		Body: []byte(`{"MsgType":"event","Event":"sys_approval_change","CreateTime":1760009999,"ApprovalInfo":{"SpNo":"202510090001","SpStatus":2,
			"SpRecord":[{"SpStatus":2,"ApproverAttr":1,"Details":[{"Approver":{"UserId":"u_boss"},"Speech":"","SpStatus":2,"SpTime":1759999999,"MediaId":[]}]}]}}`),
	})
	if callback.Event.Identity != rebuilt.Event.Identity {
		t.Errorf("callback %q\nrebuilt  %q", callback.Event.Identity, rebuilt.Event.Identity)
	}
}

func TestWecomIdentity_MissingIDsAreNeverAConstantKey(t *testing.T) { // cases 87, 88
	for name, payload := range map[string]string{
		"suite event without time":   msg("InfoType", "change_auth", "SuiteId", "s"),
		"time 0":                     msg("MsgType", "event", "Event", "x", "CreateTime", "0"),
		"message without id or time": msg("MsgType", "text", "MsgId", "0"),
		"message with id null":       msg("MsgType", "text", "MsgId", " null "),
		"bot without msgid":          `{"msgtype":"text","aibotid":"b","msgid":""}`,
		"stream refresh":             `{"msgtype":"stream","aibotid":"b","msgid":"m1","stream":{"id":"s1"}}`,
	} {
		a, b := identify(t, payload), identify(t, payload)
		if a.Event.Identity.Kind != event.KindUnkeyed || keyOf(a) == keyOf(b) {
			t.Errorf("%s: %+v", name, a.Event.Identity)
		}
	}
	withTime := identify(t, msg("MsgType", "text", "MsgId", "0", "CreateTime", "1760000000"))
	if withTime.Event.Identity.Kind != event.KindNatural {
		t.Errorf("message without id but with time: %+v", withTime.Event.Identity)
	}
	twice := identify(t, msg("MsgType", "text", "MsgId", "1", "MsgId", "2", "CreateTime", "1760000000"))
	if twice.Event.Identity.Kind != event.KindNatural || len(twice.Repeats) != 1 || twice.Repeats[0] != "MsgId" {
		t.Errorf("two MsgIds: %+v %q", twice.Event.Identity, twice.Repeats)
	}
}

func TestWecomIdentity_LongIDIsParkedNotRefused(t *testing.T) { // case 95
	id := identify(t, msg("MsgType", "text", "MsgId", strings.Repeat("x", 2000)))
	if id.Event.Identity.Kind != event.KindOversize || len(id.Event.Identity.ID) != 64 {
		t.Errorf("%+v", id.Event.Identity)
	}
}

func TestWecomIdentity_BotMessagesAndEvents(t *testing.T) {
	c := wecomSource()
	c.Endpoint, c.ReceiveIDs = EndpointBot, []string{""}
	w := wecomScheme(t, c)
	for payload, typ := range map[string]string{
		`{"msgid":"m1","aibotid":"b","msgtype":"text","text":{"content":"x"}}`:              "bot.text",
		`{"msgid":"m1","aibotid":"b","msgtype":"event","event":{"eventtype":"enter_chat"}}`: "bot.event.enter_chat",
		`{"msgid":"m1","aibotid":"b","msgtype":"event"}`:                                    "bot.event",
	} {
		ev := w.Identify(Payload{Body: []byte("\ufeff" + payload)}).Event
		want := event.Identity{Tenant: "b", Kind: event.KindPlatform, Type: typ, ID: tuple("b", "m1")}
		if ev.Type != typ || ev.Identity != want || string(ev.Body) != payload {
			t.Errorf("%s: %s %+v %s", payload, ev.Type, ev.Identity, ev.Body)
		}
	}
}

func TestWecomIdentity_WhatCannotBeUnderstoodIsKeptAsItCame(t *testing.T) {
	for name, payload := range map[string]string{
		"no XML":             "hello",
		"broken XML":         "<xml><a>1</xml>",
		"document type":      "<!DOCTYPE xml><xml><MsgType>text</MsgType><MsgId>1</MsgId></xml>",
		"no type":            "<xml><a>1</a></xml>",
		"two types":          msg("MsgType", "text", "MsgType", "image", "MsgId", "1"),
		"type with a blank":  msg("MsgType", "a b", "MsgId", "1"),
		"type too long":      msg("MsgType", strings.Repeat("x", 300), "MsgId", "1"),
		"JSON of no object":  "[1]",
		"event without name": msg("MsgType", "event", "CreateTime", "1760000000"),
		"empty":              "",
	} {
		a, b := identify(t, payload), identify(t, payload+" ")
		if a.Event.Type != event.TypeUnparsed || string(a.Event.Body) != payload || len(a.Event.Identity.ID) != 64 ||
			a.Event.Identity.Kind != event.KindNatural || a.Event.Identity.Tenant != "ww00c0ffee00c0ffee" {
			t.Errorf("%s: %+v", name, a.Event)
		}
		if keyOf(a) == keyOf(b) {
			t.Errorf("%s: one key for two payloads", name)
		}
	}
}

func TestWecomIdentity_TenantIsTheCorpNotTheSuite(t *testing.T) {
	w := wecomScheme(t, wecomSource())
	for _, c := range []struct{ payload, receiveID, want string }{
		{msg("InfoType", "change_auth", "AuthCorpId", "wwCORP", "TimeStamp", "1760000000"), "wwSUITE", "wwCORP"},
		{msg("InfoType", "suite_ticket", "SuiteTicket", "t"), "wwSUITE", "wwSUITE"},
		{sysEvent("x"), "wwCORP", "wwCORP"},
		{sysEvent("x"), "", "ww00c0ffee00c0ffee"},
	} {
		got := w.Identify(Payload{Body: []byte(c.payload), Tenant: c.receiveID}).Event.Identity
		if got.Tenant != c.want || got.Kind != event.KindNatural {
			t.Errorf("%s for %q: %+v", c.payload, c.receiveID, got)
		}
	}
}

func TestWecom_SamplesAreKeyedAndOpen(t *testing.T) {
	for endpoint, typ := range map[string]string{EndpointApp: "message.text", EndpointSuite: "suite.create_auth", EndpointBot: "bot.text"} {
		c := wecomSource()
		c.Endpoint = endpoint
		if endpoint == EndpointBot {
			c.ReceiveIDs = []string{""}
		}
		rc, sink := readyReceiver(t, testClock, c)
		var keys []string
		for _, id := range []string{"a&<", "a&<", "b"} {
			payload, err := Sample(c, id)
			if err != nil {
				t.Fatal(err)
			}
			w, _ := serve(rc, signedRequest(t, c, string(payload), testClock))
			if want := map[bool]string{true: "success"}[endpoint == EndpointSuite]; w.Code != 200 || w.Body.String() != want {
				t.Fatalf("%s: %d %q", endpoint, w.Code, w.Body)
			}
		}
		for _, ev := range sink.stored() {
			if ev.Type != typ {
				t.Errorf("%s: type %s", endpoint, ev.Type)
			}
			keys = append(keys, event.KeyFor(&ev, "h").Tuple)
		}
		if len(keys) != 3 || keys[0] != keys[1] || keys[0] == keys[2] {
			t.Errorf("%s: keys %q", endpoint, keys)
		}
	}
}
