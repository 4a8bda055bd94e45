#!/usr/bin/env bash
# Installs what the interop runs need: npm packages as their lockfiles say, in a cache outside the tree that is linked
# here as node_modules, and the Go programs in bin/interop. Does nothing that is done already.
# Needs Node 20 or later, npm and Go. The cache is ${XDG_CACHE_HOME:-~/.cache}/outrigger/interop-HASH, about 600 MB.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here"

for tool in node npm go; do
  command -v "$tool" >/dev/null || { echo "install.sh: $tool is missing; on Debian: apt-get install nodejs npm golang" >&2; exit 1; }
done
major=$(node -p 'process.versions.node.split(".")[0]')
[ "$major" -ge 20 ] || { echo "install.sh: Node $(node --version) is too old, 20 or later is needed" >&2; exit 1; }

hash=$(cat package.json package-lock.json bridges/package.json bridges/package-lock.json | sha256sum | cut -c1-12)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/outrigger/interop-$hash

# npm install and not npm ci: the lockfile of bridges lacks an optional package for Windows, which ci refuses.
packages() {
  mkdir -p "$2"
  cp "$1"/package.json "$1"/package-lock.json "$2"
  npm install --prefix "$2" --ignore-scripts --no-audit --no-fund --loglevel=error
}

mkdir -p "$(dirname "$cache")"
exec 9>"$cache.lock"
flock 9
if [ ! -e "$cache/complete" ]; then
  echo "installing npm packages in $cache"
  packages . "$cache"
  packages bridges "$cache/bridges"
  touch "$cache/complete"
fi
flock -u 9

ln -sfn "$cache/node_modules" node_modules
ln -sfn "$cache/bridges/node_modules" bridges/node_modules

mkdir -p ../../bin/interop
sdk=github.com/modelcontextprotocol/go-sdk/conformance
(cd go && go build -o ../../../bin/interop ./... $sdk/everything-server $sdk/everything-client)
