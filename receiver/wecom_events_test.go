package receiver

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"idemd/event"
)

// wecomTypes are the types of the sample events.
var wecomTypes = map[string]string{
	"01-msg-text":                                     "message.text",
	"02-msg-text-string-msgid":                        "message.text",
	"03-msg-image":                                    "message.image",
	"04-msg-location":                                 "message.location",
	"05-event-enter-agent":                            "enter_agent",
	"06-event-click":                                  "click",
	"07-event-view":                                   "view",
	"08-event-LOCATION":                               "LOCATION",
	"09-event-unsubscribe-agent-2":                    "unsubscribe",
	"10-event-unsubscribe-agent-3":                    "unsubscribe",
	"11-change-contact-create-user":                   "change_contact.create_user",
	"12-change-contact-update-user-rename":            "change_contact.update_user",
	"13-change-contact-update-user-same-second":       "change_contact.update_user",
	"14-change-contact-delete-user-a":                 "change_contact.delete_user",
	"15-change-contact-delete-user-b":                 "change_contact.delete_user",
	"16-change-contact-create-party":                  "change_contact.create_party",
	"18-batch-job-result":                             "batch_job_result",
	"19-sys-approval-submit":                          "sys_approval_change",
	"20-sys-approval-approved-a":                      "sys_approval_change",
	"21-sys-approval-approved-b-same-second":          "sys_approval_change",
	"24-open-approval-change":                         "open_approval_change",
	"25-external-contact-add-a":                       "change_external_contact.add_external_contact",
	"26-external-contact-add-b-same-second":           "change_external_contact.add_external_contact",
	"27-external-contact-add-half":                    "change_external_contact.add_half_external_contact",
	"28-external-contact-edit":                        "change_external_contact.edit_external_contact",
	"29-external-contact-del":                         "change_external_contact.del_external_contact",
	"30-external-contact-del-follow-user":             "change_external_contact.del_follow_user",
	"31-external-contact-transfer-fail":               "change_external_contact.transfer_fail",
	"32-external-chat-update-add-member":              "change_external_chat.update",
	"33-external-chat-update-change-name-same-second": "change_external_chat.update",
	"34-external-tag-update":                          "change_external_tag.update",
	"35-template-card-event":                          "template_card_event",
	"37-kf-account-auth-change":                       "kf_account_auth_change",
	"38-suite-ticket":                                 "suite.suite_ticket",
	"39-create-auth":                                  "suite.create_auth",
	"40-change-auth":                                  "suite.change_auth",
	"41-cancel-auth":                                  "suite.cancel_auth",
	"43-living-status-change":                         "living_status_change",
	"44-meeting-start":                                "meeting_change.meeting_start",
	"47-meeting-statistics-no-id":                     "meeting_statistics.start_meeting",
	"48-upload-media-job-finish":                      "upload_media_job_finish",
	"49-msgaudit-notify":                              "msgaudit_notify",
	"50-book-meeting-room":                            "book_meeting_room",
}

func samples(t testing.TB) map[string]string {
	t.Helper()
	files, err := filepath.Glob("testdata/wecom/events/*.xml")
	if err != nil || len(files) != 43 {
		t.Fatalf("%d sample events, %v", len(files), err)
	}
	all := map[string]string{}
	for _, f := range files {
		all[strings.TrimSuffix(filepath.Base(f), ".xml")] = string(readFile(t, f))
	}
	return all
}

func TestWecomEvents_HaveTypeTimeTenantAndIdentity(t *testing.T) {
	for name, payload := range samples(t) {
		id := identify(t, payload)
		ev := id.Event
		if ev.Type != wecomTypes[name] {
			t.Errorf("%s: type %q, want %q", name, ev.Type, wecomTypes[name])
		}
		if want := time.Unix(testClock, 0).UTC(); name != "19-sys-approval-submit" && !ev.Time.Equal(want) {
			t.Errorf("%s: time %s", name, ev.Time)
		}
		wantKind := event.KindNatural
		if strings.HasPrefix(ev.Type, "message.") {
			wantKind = event.KindPlatform
		}
		if ev.Identity.Kind != wantKind || ev.Identity.Type != ev.Type || ev.Identity.ID == "" {
			t.Errorf("%s: identity %+v", name, ev.Identity)
		}
		if ev.Identity.Tenant != "ww00c0ffee00c0ffee" || ev.ContentType != "application/json" {
			t.Errorf("%s: tenant %q, content type %q", name, ev.Identity.Tenant, ev.ContentType)
		}
		if len(id.Repeats) > 0 {
			t.Errorf("%s: undeclared repeats %q", name, id.Repeats)
		}
		if !json.Valid(ev.Body) {
			t.Errorf("%s: body is no JSON: %s", name, ev.Body)
		}
	}
}

// Every sample that INDEX.json tells apart has a key of its own, also those
// that the documented key (sender, second, event) unites.
func TestWecomEvents_ThatTheIndexTellsApartStayApart(t *testing.T) {
	var index struct {
		Collisions map[string][]string `json:"seed_key_collisions"`
		Files      []struct {
			File     string `json:"file"`
			Proposed string `json:"proposed_key"`
		} `json:"files"`
	}
	readJSON(t, "testdata/wecom/events/INDEX.json", &index)
	all := samples(t)
	if len(index.Files) != len(all) || len(index.Collisions) != 8 {
		t.Fatalf("index has %d files, %d groups", len(index.Files), len(index.Collisions))
	}
	byKey, byProposed := map[string]string{}, map[string]string{}
	for _, f := range index.Files {
		name := strings.TrimSuffix(f.File, ".xml")
		key := keyOf(identify(t, all[name]))
		other, same := byKey[key]
		proposedOther, proposedSame := byProposed[f.Proposed]
		if same && !proposedSame {
			t.Errorf("%s and %s have one key", name, other)
		}
		if proposedSame && !same {
			t.Errorf("%s and %s have two keys", name, proposedOther)
		}
		byKey[key], byProposed[f.Proposed] = name, name
	}
}

// A delivery that repeats, and one whose one-time codes were made anew, is the
// same event; nearly every other change of a leaf is another one.
func TestWecomEvents_KeyFollowsEveryLeafExceptOneTimeCodes(t *testing.T) {
	stable := map[string]bool{ // changes that do not make another event
		"WelcomeCode": true, "ResponseCode": true,
	}
	byID := map[string]bool{ // types whose id alone decides
		"batch_job_result": true, "upload_media_job_finish": true, "living_status_change": true,
		"unsubscribe": true, "meeting_statistics.start_meeting": true, "suite.suite_ticket": true,
		"suite.create_auth": true, "sys_approval_change": true,
	}
	for name, payload := range samples(t) {
		base := identify(t, payload)
		if again := identify(t, payload); keyOf(again) != keyOf(base) {
			t.Errorf("%s: two keys for one payload", name)
		}
		if byID[base.Event.Type] || strings.HasPrefix(base.Event.Type, "message.") {
			continue
		}
		doc, err := parseXML([]byte(payload), payloadLimits())
		if err != nil {
			t.Fatal(err)
		}
		for i := range doc.nodes {
			n := &doc.nodes[i]
			if n.child != 0 || len(n.text) == 0 || slices.Contains([]string{"MsgType", "Event", "InfoType", "ChangeType"}, string(n.name)) {
				continue
			}
			changed := changeLeaf(payload, string(n.name), string(n.text))
			if same := keyOf(identify(t, changed)) == keyOf(base); same != stable[string(n.name)] {
				t.Errorf("%s: other %s, same key: %t", name, n.name, same)
			}
		}
	}
}

// changeLeaf puts a 7 behind the first leaf called name that has this text.
func changeLeaf(payload, name, text string) string {
	at := strings.Index(payload, "<"+name+">")
	end := at + strings.Index(payload[at:], text) + len(text)
	return payload[:end] + "7" + payload[end:]
}

// The same message as JSON, which an admin console can choose and in which
// reconciliation writes, is the same event.
func TestWecomEvents_SameIdentityFromXMLAndJSON(t *testing.T) {
	for name, payload := range samples(t) {
		fromXML := identify(t, payload)
		fromJSON := identify(t, string(fromXML.Event.Body))
		if want := event.NewFingerprintRules(wecomVolatile()).Of(fromXML.Event.Body); fromXML.Event.Fingerprint != want {
			t.Errorf("%s: fingerprint differs from that of the body", name)
		}
		fromXML.Event.Fingerprint = event.Fingerprint{} // the receiver takes that of JSON
		if diff := cmp.Diff(fromXML.Event, fromJSON.Event); diff != "" {
			t.Errorf("%s: JSON gives another event (-XML +JSON):\n%s", name, diff)
		}
	}
}

func TestWecomEvents_BecomeTheJSONThatWasWrittenByHand(t *testing.T) {
	files, err := filepath.Glob("testdata/wecom/events/*.json")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".json")
		if name == "INDEX" {
			continue
		}
		checked++
		var want, got any
		readJSON(t, f, &want)
		body := identify(t, string(readFile(t, strings.TrimSuffix(f, ".json")+".xml"))).Event.Body
		if err := json.Unmarshal(body, &got); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if checked != 5 {
		t.Errorf("%d samples checked, want 5", checked)
	}
}

func TestWecomEvents_EachTravelsThroughTheReceiverOnce(t *testing.T) {
	c := wecomSource()
	c.ReceiveIDs = append(c.ReceiveIDs, "wwsuite00c0ffee0001")
	rc, sink := readyReceiver(t, testClock, c)
	for _, name := range slices.Sorted(maps.Keys(wecomTypes)) {
		if w, closed := serve(rc, signedRequest(t, c, samples(t)[name], testClock)); closed || w.Code != 200 || w.Body.Len() != 0 {
			t.Errorf("%s: %d %q", name, w.Code, w.Body)
		}
	}
	keys := map[string]bool{}
	for _, ev := range sink.stored() {
		keys[event.KeyFor(&ev, "crm").RunID()] = true
	}
	if len(keys) != 43 {
		t.Errorf("%d keys for 43 events", len(keys))
	}
	stats := rc.Stats()[0]
	if stats.Accepted != 43 || stats.Unparsed != 0 || stats.Unkeyed != 0 || stats.Repeats != 0 || stats.Secrets != [2]uint64{43, 0} {
		t.Errorf("stats %+v", stats)
	}
}
