package app

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// trimEvery is how often idemd looks whether a burst is over.
const trimEvery = time.Second

// cachesGone is after how many quiet ticks the queue's server has given up what
// it keeps of blocks that were read.
const cachesGone = 25

// trim gives memory back to the system when a burst is over. Go keeps what it
// has had for minutes, and a small machine has other services.
func (a *App) trim(ctx context.Context) {
	tick := time.NewTicker(trimEvery)
	defer tick.Stop()
	var records, least uint64
	quiet := 0 // ticks without a new record
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := a.store.Stats().LastNumber
		if quiet++; now != records {
			records, quiet = now, 0
		}
		if quiet == 1 && worthTrimming(mapped(), least) || quiet == cachesGone {
			runtime.GC() // the queue's server keeps blocks in pools, which last for one more collection
			debug.FreeOSMemory()
			least = mapped()
		}
	}
}

// worthTrimming reports whether memory has grown by a quarter and 16 MiB since
// it was least.
func worthTrimming(mapped, least uint64) bool { return mapped > least+least/4+16<<20 }

// mapped is what the process holds of the system's memory, in bytes.
func mapped() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64() - s[1].Value.Uint64()
}
