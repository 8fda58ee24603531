package storetest

import (
	"testing"
	"time"

	"idemd/dedup"
)

func TestMemory_PassesTheSuite(t *testing.T) {
	RunVolatile(t, func(_ testing.TB, _ string, now func() time.Time) dedup.Store { return NewMemory(now) })
}
