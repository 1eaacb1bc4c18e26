#!/usr/bin/env bash
# Updates the lock files after the dependencies have changed. Locked versions stay the same, unless you add --upgrade.
# The lock files contain hashes and no host names, so they work with any mirror.
set -euo pipefail
cd "$(dirname "$0")/.."
compile=(uv pip compile --quiet --universal --python-version 3.11 --generate-hashes
         --no-emit-index-url --no-header --no-annotate "$@")
"${compile[@]}" pyproject.toml --extra all --group dev --output-file requirements/lock.txt
"${compile[@]}" requirements/build.in --output-file requirements/build.txt
"${compile[@]}" requirements/uv.in --output-file requirements/uv.txt
