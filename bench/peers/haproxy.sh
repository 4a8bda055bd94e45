#!/usr/bin/env bash
# Runs HAProxy in front of one MCP server, to be measured beside the sidecar:
#   bin/bench/run -peer 'haproxy=bench/peers/haproxy.sh {PORT} {UPSTREAM}'
# One thread, kept-alive connections on both sides, no log: the cheapest it can be.
set -euo pipefail
[ $# = 2 ] || { echo "usage: haproxy.sh PORT URL" >&2; exit 2; }
server=${2#http://}
exec haproxy -db -f /dev/stdin <<CFG
global
    nbthread 1
    maxconn 9000
defaults
    mode http
    timeout connect 5s
    timeout client 1h
    timeout server 1h
    http-reuse always
frontend in
    bind 127.0.0.1:$1
    default_backend mcp
backend mcp
    server one ${server%%/*} pool-max-conn 1024 pool-purge-delay 1h
CFG
