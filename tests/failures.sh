#!/usr/bin/env bash
# Prints why a run of the tests failed, from its output: the first lines of each failed test, error of the compiler or of a
# lint, and missing binary, cut, so that they stand together at the end of a long log.
set -euo pipefail

printf '\n==== what failed\n'
awk '
    /^---- .* stdout ----$/ || /^error: could not / || / names no test binary / { left = 6; print; next }
    /^ *--> / && before ~ /^error/ { left = 6; print before }
    left > 0 && NF { print substr($0, 1, 600); left-- }
    { before = $0 }
' "$1" | head -n 120
