//go:build race

package mcp

// raceEnabled is for tests that count allocations: with the race detector pools forget at random.
const raceEnabled = true
