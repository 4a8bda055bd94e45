//go:build race

package streamable

// raceEnabled is for tests that count allocations: with the race detector pools forget at random.
const raceEnabled = true
