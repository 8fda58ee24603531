package boltstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"idemd/dedup"
	"idemd/event"
)

func sampleRecords() []dedup.Record {
	full := dedup.Record{
		Key: testKey("crm", "evt_1"), State: dedup.Done, Owner: dedup.External, Effect: dedup.Irrevocable,
		Outcome: dedup.OutcomeDropped, Fence: math.MaxUint64, Attempts: math.MaxUint32, FirstSeen: 1, Started: -1,
		Lease: math.MaxInt64, LeaseFor: math.MinInt64, Due: 5, Committed: 6, Expires: 7, Host: "host",
		Reason: dedup.Reason{Code: "code", Detail: "detail\x00\xff"}, Origin: event.OriginReconcile,
		Fingerprint: event.Fingerprint{Sum: [32]byte{1}, Rules: [8]byte{2}}, Seq: math.MaxUint64, Parked: true,
	}
	return []dedup.Record{
		full, benchRecord(1), {Key: testKey("", "x")},
		{Key: testKey("crm", "x"), State: dedup.Waiting, Owner: dedup.InProc, Effect: dedup.Retryable, Due: 1, Seq: 127},
	}
}

func TestRecord_RoundTrip(t *testing.T) {
	for _, r := range sampleRecords() {
		got, err := decodeRecord(appendRecord(nil, &r), interned{})
		if err != nil || *got != r {
			t.Errorf("got %+v, %v\nwant %+v", got, err, r)
		}
	}
}

func TestRecord_ANewerVersionIsNotRead(t *testing.T) {
	r := benchRecord(1)
	b := appendRecord(nil, &r)
	b[0]++
	if _, err := decodeRecord(b, nil); !errors.Is(err, ErrVersion) {
		t.Errorf("error %v", err)
	}
}

func TestRecord_IsSmall(t *testing.T) {
	r := benchRecord(1)
	if n := len(appendRecord(nil, &r)); n > 120 {
		t.Errorf("%d bytes, of which the tuple takes %d", n, len(r.Key.Tuple))
	}
}

// Whatever is read is a record in its only form, or refused.
func FuzzDecodeRecord(f *testing.F) {
	for _, r := range sampleRecords() {
		f.Add(appendRecord(nil, &r))
	}
	f.Add([]byte{})
	f.Add([]byte{recordVersion, 6})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeRecord(b, nil)
		if err != nil {
			if !errors.Is(err, errRecord) && !errors.Is(err, ErrVersion) {
				t.Fatalf("error %v", err)
			}
			return
		}
		if again := appendRecord(nil, r); !bytes.Equal(again, b) {
			t.Fatalf("%x is read, %x is written", b, again)
		}
	})
}

// Whatever stands in a journal, reading it ends without a panic, every record
// that it gives comes out of a frame with the right checksum, and numbers are
// consecutive.
func FuzzScan(f *testing.F) {
	var entries []byte
	for _, r := range sampleRecords() {
		entries, _ = appendEntry(entries, &r, 0)
	}
	h := head{number: 1, epoch: 2, first: 10}
	frame := append(make([]byte, frameHead), entries...)
	finishFrame(frame, newJournal(h, "", nil, h.encode()).seed, 10, len(sampleRecords()))
	f.Add(frame)
	f.Add(append(bytes.Clone(frame), frame...))
	f.Add(frame[:len(frame)-1])
	f.Add(make([]byte, 100))
	path := filepath.Join(f.TempDir(), "journal")
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := os.WriteFile(path, append(h.encode(), b...), 0o600); err != nil {
			t.Fatal(err)
		}
		j, err := openJournal(path)
		if err != nil {
			t.Fatal(err)
		}
		next := h.first
		limit := int64(headSize + len(b))
		err = j.scan(context.Background(), limit, func(number uint64, off int64, body []byte) error {
			if number != next || off < headSize || off+recordHead+int64(len(body)) > limit {
				t.Fatalf("record %d at %d, want %d", number, off, next)
			}
			next++
			_, err := j.read(off)
			var data *DataError
			if err != nil && !errors.As(err, &data) {
				t.Fatalf("read: %v", err)
			}
			return nil
		})
		var bad *badFrame
		if err != nil && !errors.As(err, &bad) || err == nil && j.size != limit || j.next() > next {
			t.Fatalf("ends at %d of %d, record %d of %d: %v", j.size, limit, j.next(), next, err)
		}
		if _, err := j.frameBehind(j.size, limit); err != nil {
			t.Fatal(err)
		}
		if err := j.file.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestDo_ARecordThatIsTooLargeIsRefusedAlone(t *testing.T) {
	s := openTest(t, Config{Dir: filepath.Join(t.TempDir(), "dedup")})
	e := event.Event{Source: "src", Batch: strings.Repeat("b", maxRecord), Identity: event.NewIdentity("t", event.KindPlatform, "", "1")}
	key := event.KeyFor(&e, "crm")
	if _, err := s.Do(t.Context(), key, durable); !errors.Is(err, ErrTooLarge) {
		t.Errorf("error %v", err)
	}
	if _, ok, err := s.Get(t.Context(), key); ok || err != nil {
		t.Errorf("there: %t, %v", ok, err)
	}
	settle(t, s, "other")
}

// A record may be longer than what is read of it at first.
func TestGet_ReadsLongRecords(t *testing.T) {
	s := openTest(t, Config{Dir: filepath.Join(t.TempDir(), "dedup")})
	e := event.Event{Source: "src", Batch: strings.Repeat("b", maxRecord/2), Identity: event.NewIdentity("t", event.KindPlatform, "", "1")}
	key := event.KeyFor(&e, "crm")
	want := mustDo(t, s, key, dedup.Put{State: dedup.Done, Retain: time.Hour}).Record
	if got, ok, err := s.Get(t.Context(), key); got != want || !ok || err != nil {
		t.Errorf("there: %t, %v", ok, err)
	}
}

// damage flips a bit of a running store's record.
func damage(t *testing.T, s *Store, r *dedup.Record) {
	t.Helper()
	_, place, err := s.find(r.Key.Hash, r.Key.Tuple)
	if err != nil {
		t.Fatal(err)
	}
	at := s.locate(place)
	b := make([]byte, 1)
	if _, err := at.journal.file.ReadAt(b, at.off+recordHead+20); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1
	if _, err := at.journal.file.WriteAt(b, at.off+recordHead+20); err != nil {
		t.Fatal(err)
	}
}

func wantDamaged(t *testing.T, s *Store, key event.Key) {
	t.Helper()
	_, _, err := s.Get(t.Context(), key)
	if !errors.Is(err, dedup.ErrDamaged) || !errors.Is(err, ErrDamaged) {
		t.Errorf("get: %v", err)
	}
	res, err := s.Do(t.Context(), key, durable)
	if !errors.Is(err, dedup.ErrDamaged) || errors.Is(err, dedup.ErrUnavailable) || res != (dedup.Result{}) {
		t.Errorf("do: %+v, %v", res, err)
	}
}

func TestStore_ADamagedRecordIsAnErrorOfItsKey(t *testing.T) {
	s := openTest(t, Config{Dir: filepath.Join(t.TempDir(), "dedup")})
	r := settle(t, s, "1")
	damage(t, s, &r)
	wantDamaged(t, s, r.Key)
	if err := s.Check(t.Context()); !errors.Is(err, errCheck) {
		t.Errorf("check: %v", err)
	}
	settle(t, s, "2")
}

func TestStore_ADamagedRecordDoesNotHideItsNeighbours(t *testing.T) {
	var log bytes.Buffer
	s := openTest(t, Config{Dir: filepath.Join(t.TempDir(), "dedup"), Logger: slog.New(slog.NewTextHandler(&log, nil))})
	var records []dedup.Record
	for i := range 3 {
		key := testKey("crm", fmt.Sprint("secret", i))
		records = append(records, mustDo(t, s, key, dedup.Put{State: dedup.Waiting, Due: dedup.Time(i + 1)}).Record)
	}
	damage(t, s, &records[1])
	neighbours := []dedup.Record{records[0], records[2]}
	if got, next, err := s.Due(t.Context(), "crm", 10, 10); err != nil || !slices.Equal(got, neighbours) || next == 0 {
		t.Errorf("due: %+v, next %d, %v", got, next, err)
	}
	var listed []dedup.Record
	for cursor, pages := "", 0; cursor != "" || pages == 0; pages++ {
		page, next, err := s.List(t.Context(), dedup.Filter{}, cursor, 1)
		if err != nil || pages > 3 {
			t.Fatalf("list: page %d, %v", pages, err)
		}
		listed, cursor = append(listed, page...), next
	}
	if !slices.Equal(listed, neighbours) {
		t.Errorf("list: %+v", listed)
	}
	wantDamaged(t, s, records[1].Key)
	if n := strings.Count(log.String(), "record cannot be read"); n != 3 || strings.Contains(log.String(), "secret") {
		t.Errorf("the log tells of it %d times:\n%s", n, log.String())
	}
	for _, r := range neighbours {
		if v := mustDo(t, s, r.Key, durable).Verdict; v != dedup.Granted {
			t.Errorf("a neighbour is %v", v)
		}
	}
}
