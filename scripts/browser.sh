#!/usr/bin/env bash
# For the tests of the page: installs Debian's chromium when there is none and this user may (root, or sudo that asks for
# no password). Where it may not, or apt does not have it, the tests say so themselves: one line, or, in CI, a failure.
set -euo pipefail

for name in chromium chromium-browser google-chrome; do
    if command -v "$name" >/dev/null; then exit 0; fi
done
command -v apt-get >/dev/null || exit 0

if [ "$(id -u)" = 0 ]; then
    as_root=()
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root=(sudo -n)
else
    exit 0
fi

printf 'Installing chromium for the tests of the page ...\n' >&2
install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends chromium)
"${install[@]}" >/dev/null 2>&1 || {
    "${as_root[@]}" apt-get update --quiet >/dev/null 2>&1 && "${install[@]}" >/dev/null 2>&1
} || printf 'chromium could not be installed: the tests of the page need it.\n' >&2
