//go:build race

package federate

// raceEnabled is for tests that count allocations.
const raceEnabled = true
