#!/usr/bin/env bash
# Runs the README's commands, `make demo` and `make test`, on fresh minimal Debian systems: as root, and as an ordinary
# user without sudo. Each system is built with debootstrap in a temporary folder and gets only the packages that
# CONTRIBUTING.md names, plus git and certificates, which every clone needs. There is no Java and no Node.
#
# Mirrors, proxies, certificates and pip's settings are read from this machine at run time. All mounts are made in a
# mount namespace of this script, so they disappear with it, whatever happens.
set -euo pipefail

usage() {
    cat <<'END'
Usage: scripts/fresh_check.sh [--suite NAME]... [--user NAME]... [--only COMMAND]... [--demo ARGS] [--pytest ARGS] [--keep]
  --suite NAME      Debian release: bookworm or trixie (default: both)
  --user NAME       root or ordinary (default: both, ordinary first: root may install Chromium)
  --only COMMAND    demo or test (default: both)
  --demo ARGS       arguments for `make demo`
  --pytest ARGS     arguments for `make test`, for example a list of test files
  --keep            keep the systems, and print where they are
The logs are in build/fresh-check.
END
}
refuse() { printf 'fresh-check: %s\n' "$*" >&2; exit 2; }
say() { printf '%s  %s\n' "$(date +%T)" "$*" >&2; }

suites=() users=() commands=() keep='' demo_args='' test_args=''
words=("$@")
while [ $# -gt 0 ]; do
    case $1 in
        --suite) suites+=("${2:?}") ;;
        --user) users+=("${2:?}") ;;
        --only) commands+=("${2:?}") ;;
        --demo) demo_args=${2?} ;;
        --pytest) test_args=${2?} ;;
        --keep) keep=yes; shift; continue ;;
        --help | -h) usage; exit 0 ;;
        *) usage >&2; refuse "unknown option '$1'." ;;
    esac
    shift 2
done
[ ${#suites[@]} -gt 0 ] || suites=(bookworm trixie)
[ ${#users[@]} -gt 0 ] || users=(ordinary root)
[ ${#commands[@]} -gt 0 ] || commands=(demo test)
for user in "${users[@]}"; do
    case $user in root | ordinary) ;; *) refuse "unknown user '$user': use root or ordinary." ;; esac
done
for command in "${commands[@]}"; do
    case $command in demo | test) ;; *) refuse "unknown command '$command': use demo or test." ;; esac
done

[ "$(id -u)" = 0 ] || refuse "only root can build and enter the systems: run it with sudo."
for program in debootstrap git unshare; do
    command -v "$program" >/dev/null || refuse "$program is missing: apt-get install debootstrap git util-linux."
done
if [ -z "${FRESH_CHECK_NAMESPACE:-}" ]; then
    exec env FRESH_CHECK_NAMESPACE=yes unshare --mount --propagation private -- "$0" "${words[@]}"
fi

cd "$(dirname "$0")/.."
repository=$PWD
logs=$repository/build/fresh-check
mkdir -p "$logs"
folder=$(mktemp -d "${TMPDIR:-/tmp}/pairbus-fresh.XXXXXX")
clean_up() {
    local point
    for point in $(awk -v folder="$folder/" 'index($2, folder) == 1 {print $2}' /proc/self/mounts | sort -r); do
        umount --lazy "$point"
    done
    if [ -n "$keep" ]; then
        echo "The systems are in $folder."
    elif ! grep -qF " $folder/" /proc/self/mounts; then
        rm -rf --one-file-system "$folder"
    fi
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# The settings of this machine.
mirror=$(apt-get indextargets --format '$(SITE) $(LABEL)' 'Created-By: Packages' 2>/dev/null |
    awk '$2 == "Debian" {print $1; exit}' || true)  # without one, debootstrap has its own
apt_settings=$(apt-config dump 2>/dev/null | grep -E '^Acquire::(https?::(Proxy|CaInfo|Verify)|Check-Valid-Until)' || true)
eval "$(apt-config shell apt_proxy Acquire::http::Proxy 2>/dev/null || true)"
bundle=/etc/ssl/certs/ca-certificates.crt
environment=(PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8)
while IFS= read -r -d '' setting; do
    if [[ ${setting%%=*} =~ ^(PIP_.*|UV_.*|SSL_CERT_.*|REQUESTS_CA_BUNDLE|[a-zA-Z]*_proxy|[A-Z]*_PROXY)$ ]] &&
        [[ ${setting%%=*} != *_CACHE* ]]; then
        environment+=("$setting")
    fi
done < /proc/self/environ
package_folders=$(python3 -m pip config list 2>/dev/null | grep -oE "(file://)?/[^ '\"]+" | sed 's#^file://##' | sort -u || true)
packages=$(sed -n 's/.*`apt-get install \([^`]*\)`.*/\1/p' CONTRIBUTING.md | head -n 1)
[ -n "$packages" ] || refuse "CONTRIBUTING.md no longer names the packages to install."

build_system() { # suite root
    local suite=$1 root=$2 file home
    say "building Debian $suite ..."
    http_proxy=${http_proxy:-${apt_proxy:-}} debootstrap --variant=minbase --include=ca-certificates,git "$suite" "$root" \
        ${mirror:+"$mirror"} > "$logs/$suite.log" 2>&1 || { tail -n 5 "$logs/$suite.log" >&2; return 1; }
    for file in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/uv/uv.toml; do
        if [ -e "$file" ]; then install -D -m 644 "$file" "$root$file"; fi
    done
    [ ! -e "$bundle" ] || install -D -m 644 "$bundle" "$root$bundle"
    printf '%s\n' "$apt_settings" > "$root/etc/apt/apt.conf.d/90this-machine"
    mount --rbind /dev "$root/dev"
    mount --make-rslave "$root/dev"
    for file in $package_folders; do
        # A folder of packages is bound at its own path; certificates and the like are there already.
        [ -d "$file" ] || continue
        mkdir -p "$root$file"
        mount --bind -o ro "$file" "$root$file"
    done
    enter "$root" root "apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes $packages &&
        useradd --create-home --shell /bin/bash ordinary" >> "$logs/$suite.log" 2>&1 ||
        { tail -n 5 "$logs/$suite.log" >&2; return 1; }
    for home in root home/ordinary; do
        for file in .config/pip/pip.conf .pip/pip.conf .config/uv/uv.toml; do
            if [ -e "$HOME/$file" ]; then install -D -m 644 "$HOME/$file" "$root/$home/$file"; fi
        done
        git clone --quiet "file://$repository" "$root/$home/pairbus"
    done
    enter "$root" root "chown -R ordinary: /home/ordinary"
}

# Runs a command line in the system, with its own processes: whatever it leaves running ends with it. A shell that starts
# this script in the background lets it ignore Ctrl-C; the tests of interrupts must not inherit that.
enter() { # root user command
    local root=$1 user=$2 command=$3 home=/root
    [ "$user" = root ] || home=/home/$user
    unshare --mount --pid --fork --kill-child --root="$root" --mount-proc -- \
        /usr/bin/env -i --default-signal=INT,QUIT "${environment[@]}" HOME="$home" USER="$user" \
        /usr/sbin/runuser -u "$user" -- /bin/bash -c "cd $home; $command" < /dev/null
}

results=() failed=0
run() { # suite root user command arguments
    local suite=$1 root=$2 user=$3 command=$4 arguments=$5 log=$logs/$1-$3-$4.log started=$SECONDS result=passed last
    say "Debian $suite, $user: make $command ${arguments:+ARGS='$arguments'}"
    enter "$root" "$user" "cd pairbus && make $command ARGS=$(printf %q "$arguments")" > "$log" 2>&1 || { result=FAILED; failed=1; }
    last=$(grep -v '^ *$' "$log" | tail -n 1 | tr -d '=' | sed 's/^ *//; s/ *$//')
    results+=("$(printf '%-9s  %-8s  make %-4s  %-6s  %5d s  %s' \
        "$suite" "$user" "$command" "$result" $((SECONDS - started)) "${last:0:90}")")
}

for suite in "${suites[@]}"; do
    root=$folder/$suite
    if ! build_system "$suite" "$root"; then
        results+=("$(printf '%-9s  could not be built: build/fresh-check/%s.log says why' "$suite" "$suite")")
        failed=1
        continue
    fi
    for user in "${users[@]}"; do
        for command in "${commands[@]}"; do
            case $command in demo) arguments=$demo_args ;; test) arguments=$test_args ;; esac
            run "$suite" "$root" "$user" "$command" "$arguments"
        done
    done
done

printf '\n%-9s  %-8s  %-9s  %-6s  %7s  %s\n' suite user command result time 'last line'
printf '%s\n' "${results[@]}"
exit "$failed"
