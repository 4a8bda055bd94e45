#!/usr/bin/env bash
# Builds the tools pinned in tools/go.mod into a cache outside the tree, once for each version of tools/go.sum, and links
# them in bin/tools:  tools/build.sh NAME ...   Without names: all of them. buf alone takes minutes on a new machine.
set -euo pipefail
cd "$(dirname "$0")"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/outrigger/tools-$(cat go.mod go.sum <(go env GOVERSION) | sha256sum | cut -c1-12)
mkdir -p "$cache" ../bin/tools
exec 9>"$cache/lock"
flock 9
for package in $(go list tool); do
  name=$(basename "$package")
  [ $# = 0 ] || [[ " $* " == *" $name "* ]] || continue
  if [ ! -x "$cache/$name" ]; then
    echo "building $name" >&2
    go build -o "$cache/$name.part" "$package"
    mv "$cache/$name.part" "$cache/$name"
  fi
  ln -sfn "$cache/$name" "../bin/tools/$name"
done
