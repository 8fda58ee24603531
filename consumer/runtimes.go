package consumer

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// runTimes counts how long attempts took, in buckets whose width is at most an
// eighth of where they begin. The zero value is ready for use.
type runTimes struct {
	counts [8 * 64]atomic.Uint64
}

// runBucket gives the bucket of a number of microseconds: the place of the
// highest bit and the three bits behind it.
func runBucket(us uint64) int {
	if us < 8 {
		return int(us)
	}
	exp := bits.Len64(us) - 4
	return exp*8 + int(us>>exp)
}

// runBucketEnd is the first number of microseconds behind a bucket.
func runBucketEnd(bucket int) uint64 {
	if bucket < 16 {
		return uint64(bucket) + 1
	}
	exp := bucket/8 - 1
	return uint64(bucket%8+9) << exp
}

func (t *runTimes) add(d time.Duration) {
	t.counts[runBucket(uint64(max(d, 0)/time.Microsecond))].Add(1)
}

// RunTimes says how long attempts took since the process started, also those that
// were cut by their timeout.
type RunTimes struct {
	Count uint64        `json:"count"`
	P50   time.Duration `json:"p50"` // percentiles may be too long by an eighth
	P95   time.Duration `json:"p95"`
	P99   time.Duration `json:"p99"`
}

func (t *runTimes) snapshot() RunTimes {
	var counts [8 * 64]uint64
	var r RunTimes
	for i := range t.counts {
		counts[i] = t.counts[i].Load()
		r.Count += counts[i]
	}
	at := func(percent uint64) time.Duration {
		rank, seen := (r.Count*percent+99)/100, uint64(0)
		for i, n := range counts {
			if seen += n; n > 0 && seen >= rank {
				return time.Duration(runBucketEnd(i)) * time.Microsecond
			}
		}
		return 0
	}
	r.P50, r.P95, r.P99 = at(50), at(95), at(99)
	return r
}

// minRunTimes is how many attempts must have ended before their times say
// something.
const minRunTimes = 20

// NearTimeout reports whether attempts take so long that many are cut: one in
// twenty takes more than four fifths of the timeout, after which its outcome is
// unknown.
func (r RunTimes) NearTimeout(timeout time.Duration) bool {
	return r.Count >= minRunTimes && r.P95 > timeout/5*4
}
