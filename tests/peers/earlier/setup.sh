#!/usr/bin/env bash
# Installs earlier releases of the SDKs, pinned by the files beside this script, into DIR/earlier, where DIR is the folder that
# `tests/peers/setup.sh` filled. For `make restarted-servers` alone. Run again with nothing to do it takes no time.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dir=$1/earlier

# is_done FOLDER STAMP
is_done() { [ "$(cat "$1/.stamp" 2>/dev/null || true)" = "$2" ]; }

for list in "$here"/*.txt "$here"/ts-*; do
    venv=$dir/$(basename "$list" .txt)
    pins=$list
    [ ! -d "$list" ] || pins=$list/package-lock.json
    stamp=$(cat "$here/setup.sh" "$pins" | sha256sum | cut -d ' ' -f 1)
    is_done "$venv" "$stamp" && continue
    printf 'peers: installing %s\n' "$(basename "$venv")"
    rm -rf "$venv"
    mkdir -p "$venv"
    if [ -d "$list" ]; then
        cp "$list"/package*.json "$here/../restarted_server.mjs" "$venv/"
        (cd "$venv" && npm ci --ignore-scripts --no-audit --no-fund --no-update-notifier --loglevel=error)
    else
        python3 -m venv "$venv"
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --no-deps --only-binary :all: -r "$list"
    fi
    printf '%s\n' "$stamp" >"$venv/.stamp"
done
