#!/usr/bin/env bash
# Makes the root file systems of the images as tar files in target/dist/TARGET, beside the static binary:
#
#   deploy/rootfs.sh              rootfs.tar: authorities, the user 65532, /tmp, the store's folder
#   deploy/rootfs.sh programs     rootfs-programs.tar: the same on Debian with Node, uv and Python (as root, with mmdebstrap)
#
# TARGET names the architecture (x86_64-unknown-linux-musl). CA_FILE is the file of authorities; SUITE (trixie) and MIRROR are
# Debian's. Equal inputs give equal bytes, with the time SOURCE_DATE_EPOCH.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
target=${TARGET:-x86_64-unknown-linux-musl}
out=$here/../target/dist/$target
authorities=${CA_FILE:-/etc/ssl/certs/ca-certificates.crt}
user=65532
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-0}

fail() { printf 'rootfs: %s\n' "$*" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"

# pack FOLDER FILE: all entries of root's, but the store's folder and /tmp.
pack() {
    local list=$work/entries folder=$1 file=$2
    (cd "$folder" && find . -mindepth 1 | sort) >"$list"
    tar --create --format=gnu --no-recursion --numeric-owner --owner=0 --group=0 --mtime="@$SOURCE_DATE_EPOCH" \
        --directory "$folder" --files-from <(grep -vx './var/lib/taskgate' "$list") --file "$file"
    tar --append --format=gnu --no-recursion --numeric-owner --owner="$user" --group="$user" --mtime="@$SOURCE_DATE_EPOCH" \
        --directory "$folder" --file "$file" ./var/lib/taskgate
}

base() {
    [ -s "$authorities" ] || fail "$authorities is missing: install ca-certificates, or name a PEM file in CA_FILE"
    local root=$work/root
    mkdir -p "$root/etc/ssl/certs" "$root/etc/taskgate" "$root/var/lib/taskgate" "$root/tmp"
    install -m 0644 "$authorities" "$root/etc/ssl/certs/ca-certificates.crt"
    printf 'root:x:0:0::/:/nonexistent\ntaskgate:x:%s:%s::/var/lib/taskgate:/nonexistent\n' "$user" "$user" >"$root/etc/passwd"
    printf 'root:x:0:\ntaskgate:x:%s:\n' "$user" >"$root/etc/group"
    chmod 0644 "$root/etc/passwd" "$root/etc/group"
    find "$root" -type d -exec chmod 0755 {} +
    chmod 0700 "$root/var/lib/taskgate"
    chmod 1777 "$root/tmp"
    pack "$root" "$out/rootfs.tar"
}

programs() {
    command -v mmdebstrap >/dev/null || fail "mmdebstrap is missing: run 'apt-get install mmdebstrap' as root"
    local architecture wheel
    case $target in
        x86_64-*) architecture=amd64 wheel=manylinux_2_17_x86_64 ;;
        aarch64-*) architecture=arm64 wheel=manylinux_2_17_aarch64 ;;
        *) fail "$target: the programs are made for x86_64 and aarch64" ;;
    esac
    printf 'uv==0.13.9 --hash=sha256:%s --hash=sha256:%s\n' \
        d7f459fe4fd247d830351c75686d3996ace3c6f3f728eb0e85a30b7ada0cef19 \
        5435c5ce14a56431208ca0996416d310f1598e8c2c8ba707688985a16bb82dbe >"$work/requirements.txt"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
        --platform "$wheel" --dest "$work" --requirement "$work/requirements.txt"
    python3 -m zipfile -e "$work"/uv-*.whl "$work/wheel"
    install -m 0755 -t "$work" "$work"/wheel/uv-*.data/scripts/uv "$work"/wheel/uv-*.data/scripts/uvx
    mmdebstrap --quiet --variant=minbase --architectures="$architecture" \
        --include=ca-certificates,nodejs,npm,python3,python3-venv \
        --customize-hook="mkdir -p \$1/etc/taskgate" \
        --customize-hook="upload $work/uv /usr/local/bin/uv" \
        --customize-hook="upload $work/uvx /usr/local/bin/uvx" \
        --customize-hook="chmod 0755 \$1/usr/local/bin/uv \$1/usr/local/bin/uvx" \
        --customize-hook="echo taskgate:x:$user:$user::/var/lib/taskgate:/usr/sbin/nologin >> \$1/etc/passwd" \
        --customize-hook="echo taskgate:x:$user: >> \$1/etc/group" \
        --customize-hook="install -d -m 0700 -o $user -g $user \$1/var/lib/taskgate" \
        --customize-hook="rm -rf \$1/usr/share/doc \$1/usr/share/man \$1/var/cache/apt \$1/var/lib/apt/lists" \
        "${SUITE:-trixie}" "$out/rootfs-programs.tar" ${MIRROR:+"$MIRROR"}
}

case ${1:-base} in
    base) base ;;
    programs) programs ;;
    *) fail "$1 is unknown: base or programs" ;;
esac
