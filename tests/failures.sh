#!/usr/bin/env bash
# Prints why tests failed, from what a run of the tests printed: the first lines of each, cut, so that they stand together
# at the end of a long log.
set -euo pipefail

printf '\n==== what failed\n'
awk '
    /^---- .* stdout ----$/ { left = 6; print; next }
    left > 0 && NF { print substr($0, 1, 600); left-- }
' "$1" | head -n 120
