#!/usr/bin/env bash
# Builds the wheel, installs it with all extras into an empty environment, as a user would, and runs the demo in an
# empty folder. Needs the network and a minute or two.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$root/.venv/bin/python" -m build --no-isolation --wheel --outdir "$folder/wheel" "$root" > "$folder/build.log" 2>&1 \
    || { cat "$folder/build.log" >&2; exit 1; }
"$root/.venv/bin/python" -m venv "$folder/environment"
wheel=$(echo "$folder"/wheel/*.whl)
echo "pip install pairbus[all] ..."
"$folder/environment/bin/pip" install --quiet --disable-pip-version-check "pairbus[all] @ file://$wheel"
mkdir "$folder/empty"
cd "$folder/empty"
"$folder/environment/bin/pairbus" --version
"$folder/environment/bin/pairbus" demo --fast
