package ledger

import (
	"maps"
	"math"
	"slices"
	"time"
)

// Histogram counts durations in buckets that grow by a tenth, from a millisecond
// to more than a year, so that a percentile is wrong by at most 5 %. The zero
// value is ready for use. It is not safe for concurrent use.
type Histogram struct {
	counts map[uint8]uint64
	max    time.Duration
}

// growth is that of a bucket's upper bound over that of the one before.
const growth = 1.1

// bucketOf gives the bucket i with growth^(i-1) ms < d <= growth^i ms.
func bucketOf(d time.Duration) uint8 {
	ms := float64(d) / float64(time.Millisecond)
	if ms <= 1 {
		return 0
	}
	return uint8(min(math.Ceil(math.Log(ms)/math.Log(growth)), math.MaxUint8))
}

// upTo is the upper bound of a bucket.
func upTo(bucket uint8) time.Duration {
	return time.Duration(math.Pow(growth, float64(bucket)) * float64(time.Millisecond))
}

// middle is the value whose relative distance to both bounds is the same.
func middle(bucket uint8) time.Duration {
	return time.Duration(float64(upTo(bucket)) * 2 / (growth + 1))
}

func (h *Histogram) add(d time.Duration) {
	if h.counts == nil {
		h.counts = map[uint8]uint64{}
	}
	h.counts[bucketOf(d)]++
	h.max = max(h.max, d)
}

// remove takes back one add of d; the largest one stays known.
func (h *Histogram) remove(d time.Duration) {
	b := bucketOf(d)
	if h.counts[b] > 1 {
		h.counts[b]--
	} else {
		delete(h.counts, b)
	}
}

func (h *Histogram) merge(o *Histogram) {
	if h.counts == nil {
		h.counts = map[uint8]uint64{}
	}
	for b, n := range o.counts {
		h.counts[b] += n
	}
	h.max = max(h.max, o.max)
}

// Bucket is a part of a Distribution.
type Bucket struct {
	UpTo  time.Duration // and including; the bucket before ends where this begins
	Count uint64
}

// Distribution says how durations are spread. Percentiles are right within 5 %,
// Max is exact.
type Distribution struct {
	Count              uint64
	P50, P95, P99, Max time.Duration
	Buckets            []Bucket // those that are not empty, shortest first
}

// Distribution evaluates the histogram.
func (h *Histogram) Distribution() Distribution {
	var d Distribution
	order := slices.Sorted(maps.Keys(h.counts))
	for _, b := range order {
		d.Count += h.counts[b]
		d.Buckets = append(d.Buckets, Bucket{UpTo: upTo(b), Count: h.counts[b]})
	}
	if d.Count > 0 {
		d.Max = h.max
	}
	at := func(share float64) time.Duration {
		rank := uint64(math.Ceil(share * float64(d.Count)))
		var seen uint64
		for _, b := range order {
			if seen += h.counts[b]; seen >= rank {
				return min(middle(b), h.max)
			}
		}
		return 0
	}
	d.P50, d.P95, d.P99 = at(0.50), at(0.95), at(0.99)
	return d
}
