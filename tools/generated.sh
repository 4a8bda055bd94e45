#!/usr/bin/env bash
# Fails when the generated Go beside the protos is not what buf would generate now.
set -euo pipefail
cd "$(dirname "$0")/.."
new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT
bin/tools/buf generate -o "$new"
generated() { (cd "$1" && find proto -name '*.pb.go' -o -name '*.connect.go' | sort); }
if ! diff <(generated .) <(generated "$new") >&2; then
  echo "generated.sh: the set of generated files differs; run make generate" >&2
  exit 1
fi
for file in $(generated .); do
  diff -q "$file" "$new/$file" >/dev/null || { echo "generated.sh: $file is not current; run make generate" >&2; exit 1; }
done
