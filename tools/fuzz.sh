#!/usr/bin/env bash
# Fuzzes every target for FUZZTIME (10s), one after the other. `go test` runs their seeds alone.
set -euo pipefail
cd "$(dirname "$0")/.."
count=0
while IFS=: read -r file _ line; do
  target=${line#func }
  target=${target%%(*}
  echo "== ${file%/*} $target"
  go test -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-10s}" "./${file%/*}"
  count=$((count + 1))
done < <(grep -rn '^func Fuzz' --include='*_test.go' . | sed 's#^\./##')
echo "fuzz: $count passed, 0 failed"
