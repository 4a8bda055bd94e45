#!/usr/bin/env bash
# Installs Debian packages whose programs are missing:  tools/packages.sh PROGRAM ...
# As root or with sudo; otherwise it says what to install.
set -euo pipefail

declare -A package=([redis-server]=redis-server [nginx]=nginx [gcc]=gcc [node]=nodejs [npm]=npm [taskset]=util-linux)
missing=()
for program in "$@"; do
  PATH=$PATH:/usr/sbin command -v "$program" >/dev/null || missing+=("${package[$program]:-$program}")
done
[ ${#missing[@]} -gt 0 ] || exit 0

sudo=()
if [ "$(id -u)" != 0 ]; then
  sudo=(sudo -n)
  "${sudo[@]}" true 2>/dev/null || { echo "packages.sh: please install: ${missing[*]} (apt-get install ${missing[*]})" >&2; exit 1; }
fi
command -v apt-get >/dev/null || { echo "packages.sh: no apt-get here; please install: ${missing[*]}" >&2; exit 1; }
echo "installing ${missing[*]}"
"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null ||
  { "${sudo[@]}" apt-get update -qq && "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}"; }
