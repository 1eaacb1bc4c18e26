#!/usr/bin/env bash
# Creates .venv in the root of the project from the lock files. Does nothing if it is up to date.
#
# - Every package is checked against its hash. The machine's settings decide where packages come from.
# - uv installs them. A machine without uv gets a private copy in .cache/, which `make clean` keeps.
# - If the machine lacks something, one sentence says what and how to install it. The script asks no questions.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly stamp=.venv/.stamp

say() { printf '%s\n' "$*" >&2; }
refuse() { say "pairbus set-up: $*"; exit 2; }

# Prefers the Python of the environment, so that another PATH does not cause a rebuild.
find_python() {
    local name
    for name in .venv/bin/python ${PAIRBUS_PYTHON:-} python3 python3.13 python3.12 python3.11; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    refuse "Python 3.11 or newer was not found; install it (Debian and Ubuntu: apt-get install python3 python3-venv python3-dev)" \
           "or name one in PAIRBUS_PYTHON."
}

# Everything the environment depends on. If any of it changes, the packages are installed again.
fingerprint() {
    { "$python" -c 'import sys; print(sys.version, sys.base_prefix)'
      pwd
      cat requirements/lock.txt requirements/build.txt pyproject.toml scripts/setup.sh
    } | sha256sum | cut -d' ' -f1
}

check_machine() {
    local compiler
    compiler=${CC:-$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("CC") or "cc")')}
    command -v "${compiler%% *}" >/dev/null || refuse \
        "the C compiler ${compiler%% *} is needed once, to build python-qpid-proton; install it" \
        "(Debian and Ubuntu: apt-get install gcc libc6-dev)."
    "$python" -c 'import pathlib, sysconfig, sys
sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").is_file())' || refuse \
        "the C headers of $python are needed once, to build python-qpid-proton; install them (Debian and Ubuntu: apt-get install python3-dev)."
}

find_uv() {
    if uv --version >/dev/null 2>&1; then
        command -v uv
        return
    fi
    local private=.cache/uv
    if ! "$private/bin/uv" --version >/dev/null 2>&1; then
        say "Installing uv into $private ..."
        rm -rf "$private"
        "$python" -m venv "$private" >/dev/null 2>&1 || refuse \
            "$python cannot create a virtual environment; install the venv module (Debian and Ubuntu: apt-get install python3-venv)."
        "$private/bin/python" -m pip install --quiet --disable-pip-version-check --no-input \
            --require-hashes -r requirements/uv.txt >&2 || refuse \
            "uv could not be installed; check the network or pip's settings, then run the command again."
    fi
    printf '%s\n' "$private/bin/uv"
}

is_ready() {
    [ -x .venv/bin/python ] || return 1
    python=.venv/bin/python
    wanted=$(fingerprint)
    [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]
}

if is_ready; then exit 0; fi

# Of two commands at the same time, the second waits for the first and then finds everything ready.
mkdir -p .cache
exec 9> .cache/setup.lock
if command -v flock >/dev/null; then flock 9; fi
if is_ready; then exit 0; fi

# The scripts of an environment contain its path. If the folder was moved, or never finished, create it again.
head -n 2 .venv/bin/pytest 2>/dev/null | grep -qF "$PWD/.venv/bin/python" || rm -rf .venv
python=$(find_python)
wanted=$(fingerprint)

check_machine
uv=$(find_uv)

# uv uses the mirror that is configured for pip, and the certificates of the machine.
if [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ]; then
    mirror=${PIP_INDEX_URL:-$("$python" -m pip config get global.index-url 2>/dev/null || true)}
    [ -z "$mirror" ] || export UV_DEFAULT_INDEX=$mirror
fi
export UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-true}
export UV_PYTHON_DOWNLOADS=never
if ! mkdir -p "${UV_CACHE_DIR:-${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/uv}" 2>/dev/null; then
    export UV_CACHE_DIR=$PWD/.cache/uv-cache
fi

say "Setting up .venv with the $(grep -c '^[a-z].*==' requirements/lock.txt) packages of requirements/lock.txt" \
    "(the first time takes a minute or two, because Spark is large) ..."
[ "$python" = .venv/bin/python ] || "$uv" venv --quiet --clear --python "$python" .venv
failed="the packages could not be installed (the lines above say why); fix the cause and run the command again."
"$uv" pip sync --quiet --python .venv/bin/python --require-hashes \
    --build-constraints requirements/build.txt requirements/lock.txt || refuse "$failed"
"$uv" pip install --quiet --python .venv/bin/python --no-deps \
    --build-constraints requirements/build.txt --editable . || refuse "$failed"
printf '%s\n' "$wanted" > "$stamp"
say "Ready."
