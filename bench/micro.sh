#!/usr/bin/env bash
# Runs every Go benchmark of the sidecar and the control plane, or compares two such runs:
#
#   bench/micro.sh DIR              writes DIR/micro.txt, in the form that benchstat reads
#   bench/micro.sh compare A B      says what changed beyond noise from A/micro.txt to B/micro.txt
#
# COUNT (6) runs of BENCHTIME (100ms) each: with fewer than 6, benchstat gives no confidence interval. BENCH (.) chooses
# benchmarks by a regular expression, PACKAGES the packages; both are for trying things out.
set -euo pipefail
usage() { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }

here=$(cd "$(dirname "$0")/.." && pwd)
if [ "${1-}" = compare ]; then
  [ $# = 3 ] || usage
  for dir in "$2" "$3"; do
    [ -f "$dir/micro.txt" ] || { echo "micro.sh: $dir has no micro.txt: nothing to compare" >&2; exit 1; }
  done
  "$here/tools/build.sh" benchstat
  exec "$here/bin/tools/benchstat" "A=$2/micro.txt" "B=$3/micro.txt"
fi

[ $# = 1 ] && [ "${1#-}" = "$1" ] || usage
mkdir -p "$1"
out=$(cd "$1" && pwd)/micro.txt
cd "$here"
if [ -z "${PACKAGES-}" ]; then
  PACKAGES=$(grep -rl --include='*_test.go' '^func Benchmark' sidecar controlplane | xargs -n 1 dirname | sort -u | sed 's|^|./|')
fi
# One package after the other, so that benchmarks do not disturb each other.
# shellcheck disable=SC2086 # a list of packages
go test -p 1 -timeout 30m -run '^$' -bench "${BENCH-.}" -benchmem -count "${COUNT-6}" -benchtime "${BENCHTIME-100ms}" $PACKAGES |
  tee "$out.part"
mv "$out.part" "$out"
