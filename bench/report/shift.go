package report

import (
	"slices"

	"github.com/aclements/go-moremath/stats"
	"golang.org/x/perf/benchmath"
)

// mostRounds bounds the values of a side that are compared, since the exact test's cost grows with their fourth power.
const mostRounds = 20

// shift is by how much the second of two samples lies above the first.
type shift struct {
	n1, n2    int
	enough    bool    // for a 95 % interval; when not, the others say nothing
	low, high float64 // the interval
	differs   bool    // beyond noise: a Mann-Whitney U-test has p < 0.05, and the interval leaves out zero
}

// shiftOf compares two samples without assuming how they are distributed. The interval is the one that the same test
// gives (Hodges and Lehmann): a shift lies in it if the samples, moved by it, could be of one distribution. It takes
// four values on each side, or three and five.
func shiftOf(a, b []float64) shift {
	a, b = a[:min(len(a), mostRounds)], b[:min(len(b), mostRounds)]
	s := shift{n1: len(a), n2: len(b)}
	if len(a) == 0 || len(b) == 0 {
		return s
	}
	k := outside(len(a), len(b))
	if k == 0 {
		return s
	}
	differences := make([]float64, 0, len(a)*len(b))
	for _, from := range a {
		for _, to := range b {
			differences = append(differences, to-from)
		}
	}
	slices.Sort(differences)
	s.enough, s.low, s.high = true, differences[k-1], differences[len(differences)-k]
	thresholds := benchmath.DefaultThresholds
	test := benchmath.AssumeNothing.Compare(
		benchmath.NewSample(slices.Clone(a), &thresholds), benchmath.NewSample(slices.Clone(b), &thresholds))
	s.differs = test.P < test.Alpha && (s.low > 0 || s.high < 0)
	return s
}

// outside is the place from either end at which a 95 % interval begins among the sorted differences of samples of n1
// and n2 values; 0 when even all of them do not reach 95 %.
func outside(n1, n2 int) int {
	u := stats.UDist{N1: n1, N2: n2}
	k := 0
	for u.CDF(float64(k)) <= 0.025 {
		k++
	}
	return k
}
