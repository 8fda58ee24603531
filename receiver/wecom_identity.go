package receiver

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"idemd/event"
)

// Names that stand for more than a field in wecomKeys.
const (
	fieldTime   = "CreateTime" // or TimeStamp, which suites use
	fieldDigest = "*"          // digest of all leaves
)

// wecomKeys says what makes two events of one type the same: the values of
// these fields, beside corp, agent and type. The documented advice, FromUserName
// and CreateTime, unites events: times are whole seconds, and for most of these
// the sender is "sys". Where no id of the platform's own names the event, the
// digest of the whole message is part of the key: too wide a key runs a
// duplicate, too narrow a one loses an event. The fields beside the digest are
// there for people who read the id.
//
// Types that are not listed use wecomOther, and so do events that lack a field
// of a key without digest.
var wecomKeys = map[string][]string{
	"subscribe":               {"FromUserName", fieldTime},
	"unsubscribe":             {"FromUserName", fieldTime},
	"batch_job_result":        {"BatchJob.JobId"},
	"upload_media_job_finish": {"JobId"},
	"living_status_change":    {"LivingId", "Status"},
	"meeting_statistics":      {"FromUserName", fieldTime, "Status"},
	// A wake-up: what it announces has ids of its own.
	"kf_msg_or_event": {"OpenKfId", "Token"},

	"suite.suite_ticket":         {"SuiteTicket"},
	"suite.create_auth":          {"AuthCode"},
	"suite.reset_permanent_code": {"AuthCode"},

	"change_contact":          {"UserID", "Id", "TagId", fieldTime, fieldDigest},
	"change_external_contact": {"UserID", "ExternalUserID", fieldTime, fieldDigest},
	"change_external_chat":    {"ChatId", "UpdateDetail", "CurMemVer", fieldTime, fieldDigest},
	"change_external_tag":     {"TagType", "Id", fieldTime, fieldDigest},
	"sys_approval_change":     {"ApprovalInfo.SpNo", "ApprovalInfo.SpStatus", "ApprovalInfo.StatuChangeEvent", fieldTime, fieldDigest},
	"open_approval_change":    {"ApprovalInfo.ThirdNo", "ApprovalInfo.OpenSpStatus", fieldTime, fieldDigest},
	"template_card_event":     {"FromUserName", "TaskId", "EventKey", fieldTime, fieldDigest},
	"meeting_change":          {"MeetingId", "FromUserName", "FromUserTmpOpenId", fieldTime, fieldDigest},
}

func wecomOther() []string { return []string{"FromUserName", fieldTime, fieldDigest} }

// wecomVolatile are the members of a message that may differ between two
// deliveries of one event.
func wecomVolatile() []string { return []string{"WelcomeCode", "ResponseCode", "Token"} }

// wecomRepeatable are the paths at which XML messages have lists. They are
// arrays in JSON even with one item, so that a handler sees one shape.
var wecomRepeatable = map[string]bool{
	"ApprovalInfo.SpRecord":                                  true,
	"ApprovalInfo.SpRecord.Details":                          true,
	"ApprovalInfo.SpRecord.Details.MediaId":                  true,
	"ApprovalInfo.Notifyer":                                  true,
	"ApprovalInfo.Comments":                                  true,
	"ApprovalInfo.Comments.MediaId":                          true,
	"ApprovalInfo.ProcessList.NodeList":                      true,
	"ApprovalInfo.ProcessList.NodeList.SubNodeList":          true,
	"ApprovalInfo.ProcessList.NodeList.SubNodeList.MediaIds": true,
	"ApprovalInfo.ApprovalNodes.ApprovalNode":                true,
	"ApprovalInfo.ApprovalNodes.ApprovalNode.Items.Item":     true,
	"ApprovalInfo.NotifyNodes.NotifyNode":                    true,
	"SelectedItems.SelectedItem":                             true,
	"SelectedItems.SelectedItem.OptionIds.OptionId":          true,
	"MemChangeList.Item":                                     true,
	"AuthAddOpenKfId":                                        true,
	"AuthDelOpenKfId":                                        true,
	"ExtAttr.Item":                                           true,
	"SendPicsInfo.PicList.item":                              true,
}

// Identify gives the event of a decrypted message, XML or JSON. A message that
// cannot be parsed, or that does not say what it is, is of event.TypeUnparsed.
func (w *wecom) Identify(p Payload) Identified {
	doc, err := parse(p.Body, payloadLimits())
	if err != nil {
		return unparsed(p)
	}
	m := wecomMessage{doc: doc, tenant: p.Tenant}
	typ := m.typ()
	if !validType(typ) {
		return unparsed(p)
	}
	ev := event.Event{Type: typ, Identity: m.identity(typ), Time: m.time(), ContentType: "application/json"}
	if doc.nodes[0].name == nil {
		ev.Body = trimBOM(p.Body)
		return Identified{Event: ev}
	}
	body, repeats := doc.appendJSON(make([]byte, 0, len(p.Body)), wecomRepeatable)
	ev.Body = body
	if ev.Identity.Kind != event.KindUnkeyed {
		ev.Fingerprint = w.print.of(doc, wecomRepeatable)
	}
	return Identified{Event: ev, Repeats: repeats}
}

// unparsed is the event of an authentic payload that is not understood: the
// payload as it came, under its own SHA-256.
func unparsed(p Payload) Identified {
	sum := sha256.Sum256(p.Body)
	return Identified{Event: event.Event{
		Type:        event.TypeUnparsed,
		Identity:    event.NewIdentity(p.Tenant, event.KindNatural, event.TypeUnparsed, hex.EncodeToString(sum[:])),
		ContentType: "application/octet-stream",
		Body:        p.Body,
	}}
}

// wecomMessage is a parsed message. tenant is the receive id of its frame.
type wecomMessage struct {
	doc    *document
	tenant string
}

func (m wecomMessage) first(paths ...string) string {
	for _, path := range paths {
		if v := m.doc.field(path); v != "" {
			return v
		}
	}
	return ""
}

// typ is message.<MsgType>, <Event>[.<ChangeType>], suite.<InfoType>,
// bot.<msgtype>, bot.event.<eventtype>, or "".
func (m wecomMessage) typ() string {
	if info := m.doc.field("InfoType"); info != "" {
		return "suite." + info
	}
	switch msg := m.doc.field("MsgType"); msg {
	case "":
	case "event":
		name, change := m.doc.field("Event"), m.doc.field("ChangeType")
		if name == "" || change == "" {
			return name
		}
		return name + "." + change
	default:
		return "message." + msg
	}
	switch msg := m.doc.field("msgtype"); msg {
	case "":
		return ""
	case "event":
		if sub := m.doc.field("event.eventtype"); sub != "" {
			return "bot.event." + sub
		}
		fallthrough
	default:
		return "bot." + msg
	}
}

func (m wecomMessage) time() time.Time {
	seconds, err := strconv.ParseInt(m.first("CreateTime", "TimeStamp", "create_time"), 10, 64)
	if err != nil || seconds <= 0 {
		return time.Time{}
	}
	return time.Unix(seconds, 0).UTC()
}

// identity says which event this is. AuthCorpId comes before the receive id,
// which is the suite's own id on suites' command callbacks.
func (m wecomMessage) identity(typ string) event.Identity {
	tenant := m.first("AuthCorpId")
	if tenant == "" {
		tenant = m.tenant
	}
	if tenant == "" {
		tenant = m.first("ToUserName", "SuiteId", "aibotid")
	}
	switch {
	case typ == "bot.stream":
		// Asked again and again on purpose, until the stream is finished.
		return event.Unkeyed(tenant, typ)
	case strings.HasPrefix(typ, "bot."):
		return platformIdentity(tenant, typ, m.doc.field("msgid"), m.doc.field("aibotid"))
	case strings.HasPrefix(typ, "message."):
		if id := m.doc.field("MsgId"); !event.Missing(id) {
			return platformIdentity(tenant, typ, id, m.agent(), m.doc.field("FromUserName"))
		}
	case typ == "sys_approval_change":
		if id, ok := m.approvalState(); ok {
			return event.NewIdentity(tenant, event.KindNatural, typ, id)
		}
	}
	id, ok := m.natural(m.key(typ))
	if !ok {
		id, ok = m.natural(wecomOther())
	}
	if !ok {
		return event.Unkeyed(tenant, typ)
	}
	return event.NewIdentity(tenant, event.KindNatural, typ, id)
}

func platformIdentity(tenant, typ, id string, scope ...string) event.Identity {
	if event.Missing(id) {
		return event.Unkeyed(tenant, typ)
	}
	return event.NewIdentity(tenant, event.KindPlatform, typ, tuple(append(scope, id)...))
}

func tuple(parts ...string) string { return string(event.AppendTuple(nil, parts...)) }

// agent is the application in the corp; one person leaves several at once.
func (m wecomMessage) agent() string { return m.first("AgentID", "AgentId") }

func (m wecomMessage) key(typ string) []string {
	if key, ok := wecomKeys[typ]; ok {
		return key
	}
	name, _, _ := strings.Cut(typ, ".")
	if key, ok := wecomKeys[name]; ok {
		return key
	}
	return wecomOther()
}

// natural joins the values of fields. It reports false when one is missing that
// has to be there: a time, or anything in a key without digest.
func (m wecomMessage) natural(fields []string) (string, bool) {
	parts := []string{m.agent()}
	digest := fields[len(fields)-1] == fieldDigest
	for i, f := range fields {
		switch f {
		case fieldTime:
			created := m.first("CreateTime", "TimeStamp")
			if event.Missing(created) {
				return "", false
			}
			parts = append(parts, created)
		case fieldDigest:
			parts = append(parts, m.doc.digest(wecomVolatile()...))
		default:
			v := m.doc.field(f)
			if !digest && (v == "" || i == 0 && event.Missing(v)) {
				return "", false
			}
			parts = append(parts, v)
		}
	}
	return tuple(parts...), true
}

// approvalState is the identity of an approval that is the same in the callback
// and in what getapprovaldetail answers, so that reconciliation can rebuild it:
// form, status, and who decided what and when at each step. Urging (5) and
// commenting (10) change none of that; they report false.
func (m wecomMessage) approvalState() (string, bool) {
	number := m.first("ApprovalInfo.SpNoStr", "ApprovalInfo.SpNo")
	status := m.doc.field("ApprovalInfo.SpStatus")
	if event.Missing(number) || status == "" {
		return "", false
	}
	switch m.doc.field("ApprovalInfo.StatuChangeEvent") {
	case "5", "10":
		return "", false
	}
	info := m.doc.find(0, "ApprovalInfo")
	var steps []byte
	for s := m.doc.find(info, "SpRecord"); s != 0; s = m.doc.nodes[s].twin {
		step := strconv.Itoa(int(m.doc.nodes[s].nth))
		steps = event.AppendTuple(steps, "step", step)
		for d := m.doc.find(s, "Details"); d != 0; d = m.doc.nodes[d].twin {
			decided := m.leaf(d, "SpTime")
			if decided == "" {
				decided = "0" // the API writes "" where the callback writes 0
			}
			steps = event.AppendTuple(steps, step, m.leaf(m.doc.find(d, "Approver"), "UserId"), m.leaf(d, "SpStatus"), decided)
		}
	}
	sum := sha256.Sum256(steps)
	return tuple("state", number, status, hex.EncodeToString(sum[:])), true
}

// leaf is the text of a child of parent; a parent of 0 has none.
func (m wecomMessage) leaf(parent int32, name string) string {
	if parent == 0 {
		return ""
	}
	i := m.doc.find(parent, name)
	if i == 0 {
		return ""
	}
	return string(m.doc.trimmed(i))
}

// sampleTime is when every sample says it was made, in seconds since 1970.
const sampleTime = 1760000000

// Sample is a message that the endpoint's kind would get.
func (w *wecom) Sample(id string) []byte {
	corp := "ww0000000000000000"
	for _, r := range w.receiveIDs {
		if r != "" && r != receiveAny {
			corp = r
			break
		}
	}
	var b strings.Builder
	switch w.endpoint {
	case EndpointBot:
		fmt.Fprintf(&b, `{"msgid":%s,"aibotid":"sample","chattype":"single","from":{"userid":"sample"},"msgtype":"text","text":{"content":"hello"}}`,
			appendString(nil, []byte(strings.ToValidUTF8(id, "?"))))
	case EndpointSuite:
		fmt.Fprintf(&b, "<xml><SuiteId><![CDATA[%s]]></SuiteId><InfoType><![CDATA[create_auth]]></InfoType><TimeStamp>%d</TimeStamp><AuthCode>%s</AuthCode></xml>",
			corp, sampleTime, escapeXML(id))
	default:
		fmt.Fprintf(&b, "<xml><ToUserName><![CDATA[%s]]></ToUserName><FromUserName><![CDATA[sample]]></FromUserName><CreateTime>%d</CreateTime><MsgType><![CDATA[text]]></MsgType><Content><![CDATA[hello]]></Content><MsgId>%s</MsgId><AgentID>1000002</AgentID></xml>",
			corp, sampleTime, escapeXML(id))
	}
	return []byte(b.String())
}

func escapeXML(s string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(strings.ToValidUTF8(s, "?"))
}
