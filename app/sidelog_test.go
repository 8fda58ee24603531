package app

import (
	"encoding/binary"
	"encoding/json"
	"hash/crc32"
	"os"
	"testing"
	"time"

	"idemd/consumer"
	"idemd/event"
)

// Runs that succeeded without a claim before a kill are done at the next start,
// and their duplicates do not run. The format of the file is written out here.
func TestSideLog_IsTakenOverAtTheStart(t *testing.T) {
	s := newSink(t, func(call, int) int { return 200 })
	d := newDaemon(t, "[[handler]]\nname = \"crm\"\nsources = [\"src\"]\nkind = \"http\"\nurl = \""+s.URL+"\"\neffect = \"retryable\"\nstore_unavailable = \"allow\"\n")
	d.start("", 0)
	d.mustSend("other")
	until(t, "a run", func() bool { return d.state("crm", "other") == "done" })
	d.kill()
	key := event.KeyFor(&event.Event{Source: "src", Type: "thing", Identity: event.NewIdentity("", event.KindPlatform, "thing", "e1")}, "crm")
	payload, err := json.Marshal(map[string]any{
		"tuple": []byte(key.Tuple), "seq": 2, "effect": "retryable", "origin": "callback", "retain": time.Hour, "at": time.Now(),
	})
	if err != nil {
		t.Fatal(err)
	}
	frame := binary.LittleEndian.AppendUint32(nil, uint32(len(payload)))
	frame = binary.LittleEndian.AppendUint32(frame, crc32.Checksum(payload, crc32.MakeTable(crc32.Castagnoli)))
	if err := os.WriteFile(consumer.SideLogPath(d.dir), append(frame, payload...), 0o600); err != nil {
		t.Fatal(err)
	}
	d.start("", 0)
	d.mustSend("e1")
	until(t, "the duplicate", func() bool { return d.state("crm", "e1") == "done" })
	d.settled()
	if n := len(s.seen("crm", "e1")); n != 0 {
		t.Errorf("it ran %d times more", n)
	}
	if info, err := os.Stat(consumer.SideLogPath(d.dir)); err != nil || info.Size() != 0 {
		t.Errorf("side log afterwards: %+v, %v", info, err)
	}
}
