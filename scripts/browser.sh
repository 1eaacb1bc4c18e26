#!/usr/bin/env bash
# Installs Debian's chromium for the browser tests if there is none and this user may install packages (root, or sudo
# without a password), and says so with the command first. Otherwise it prints one line, and the browser tests are
# skipped; in CI they fail.
set -euo pipefail

for name in chromium chromium-browser google-chrome; do
    if command -v "$name" >/dev/null; then exit 0; fi
done
missing() {
    printf 'There is no Chromium here, and %s: the browser tests are skipped. As root: apt-get install chromium\n' "$*" >&2
    exit 0
}

[ -z "${PAIRBUS_NO_INSTALL:-}" ] || missing 'PAIRBUS_NO_INSTALL is set'
command -v apt-get >/dev/null || missing 'no apt-get to install it'
as_root=()
failed='apt-get could not install it'
if [ "$(id -u)" != 0 ]; then
    failed='this user may not install it'
    command -v sudo >/dev/null || missing "$failed"
    as_root=(sudo -n)
fi

install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends chromium)
printf 'The browser tests need Chromium. Running: %s (PAIRBUS_NO_INSTALL=1 prevents this)\n' "${install[*]}" >&2
"${install[@]}" >/dev/null 2>&1 || {
    "${as_root[@]}" apt-get update --quiet >/dev/null 2>&1 && "${install[@]}" >/dev/null 2>&1
} || missing "$failed"
