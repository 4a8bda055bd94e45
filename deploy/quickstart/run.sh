#!/usr/bin/env bash
# Builds the quickstart's own two programs beside those of `make build`, and runs it. Flags are passed on.
set -euo pipefail
cd "$(dirname "$0")/../.."
export CGO_ENABLED=0
go=${GO:-go}
$go build -trimpath -o bin/example-server ./deploy/quickstart/server
$go build -trimpath -o bin/quickstart ./deploy/quickstart
exec bin/quickstart "$@"
