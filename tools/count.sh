#!/usr/bin/env bash
# Prints gotestsum's counts in the form that .ci/run adds up. Run by gotestsum, which sets TESTS_*.
echo "go: $((TESTS_TOTAL - TESTS_FAILED - TESTS_SKIPPED)) passed, $((TESTS_FAILED + TESTS_ERRORS)) failed"
