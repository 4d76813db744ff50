#!/usr/bin/env bash
# Runs built test binaries: all of them, also after one that failed. Cargo would wait while another cargo compiles.
#
#   tests/run.sh LIST NAMES ARGUMENTS...
#
# LIST is a file with the output of `cargo test --no-run`; NAMES is one word of names of binaries; ARGUMENTS go to each of them.
set -euo pipefail
cd "$(dirname "$0")/.."

list=$1 names=$2
shift 2
failed=0
for name in $names; do
    found=$(sed -nE "s,^ *Executable (unittests )?((src|tests)/.*) \((.*/deps/$name-[0-9a-f]+)\)\$,\2 \4,p" "$list")
    [ -n "$found" ] || { echo "$list names no test binary $name" >&2; failed=1; continue; }
    while read -r source binary; do
        binary=$(realpath "$binary")
        printf '     Running %s (%s)\n' "$source" "$binary"
        # As cargo does: in the folder of the package. The time of each test is an unstable option.
        folder=.
        [ "$name" != support ] || folder=tests/support
        (cd "$folder" && RUSTC_BOOTSTRAP=1 "$binary" -Z unstable-options --report-time "$@") < /dev/null || failed=1
    done <<< "$found"
done
exit "$failed"
