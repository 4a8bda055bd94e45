#!/usr/bin/env bash
# Runs the sidecar in front of one MCP server, from a file of its own:  sidecar.sh URL PORT
# The endpoint is http://127.0.0.1:PORT/mcp. The file and the log are under bin/interop/sidecar-PORT.
# SIDECAR is the program (default bin/sidecar).
set -euo pipefail
[ $# = 2 ] || { echo "usage: sidecar.sh URL PORT" >&2; exit 2; }
root=$(cd "$(dirname "$0")/../.." && pwd)
run=$root/bin/interop/sidecar-$2
mkdir -p "$run"
cat >"$run/sidecar.yaml" <<YAML
kind: Upstream
name: peer
spec: {http: {url: "$1"}}
---
kind: Binding
name: peer
spec: {selector: {matchLabels: {}}, path: /mcp, upstreams: [{name: peer}]}
YAML
cd "$run"
exec "${SIDECAR:-$root/bin/sidecar}" --config "$run/sidecar.yaml" --listen "127.0.0.1:$2" --admin 127.0.0.1:0 >"$run/log" 2>&1
