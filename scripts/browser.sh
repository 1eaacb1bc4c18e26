#!/usr/bin/env bash
# Installs Debian's chromium for the browser tests if there is none and this user may install packages (root, or sudo
# without a password). Otherwise it prints one line, and the browser tests are skipped; in CI they fail.
set -euo pipefail

for name in chromium chromium-browser google-chrome; do
    if command -v "$name" >/dev/null; then exit 0; fi
done
missing() {
    printf 'There is no Chromium here, and %s: the browser tests are skipped. As root: apt-get install chromium\n' "$*" >&2
    exit 0
}

command -v apt-get >/dev/null || missing 'no apt-get to install it'
if [ "$(id -u)" = 0 ]; then
    as_root=()
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root=(sudo -n)
else
    missing 'this user may not install it'
fi

printf 'Installing chromium for the browser tests ...\n' >&2
install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends chromium)
"${install[@]}" >/dev/null 2>&1 || {
    "${as_root[@]}" apt-get update --quiet >/dev/null 2>&1 && "${install[@]}" >/dev/null 2>&1
} || missing 'apt-get could not install it'
