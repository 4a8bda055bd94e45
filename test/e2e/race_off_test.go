//go:build !race

package e2e

// raceDetector is whether the tests, and so the programs, have it.
const raceDetector = false
