#!/usr/bin/env bash
# Rewrites the locks after a change of dependencies. Versions already locked stay unless `--upgrade` is given.
# The locks hold hashes and no host names, so they work behind any mirror.
set -euo pipefail
cd "$(dirname "$0")/.."
compile=(uv pip compile --quiet --universal --python-version 3.11 --generate-hashes
         --no-emit-index-url --no-header --no-annotate "$@")
"${compile[@]}" pyproject.toml --extra all --group dev --output-file requirements/lock.txt
"${compile[@]}" requirements/build.in --output-file requirements/build.txt
"${compile[@]}" requirements/uv.in --output-file requirements/uv.txt
