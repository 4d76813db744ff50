#!/usr/bin/env bash
# Prints how many minutes each phase of `make test` took, from the lines that its steps left: the second a phase began, a tab,
# its name. The second file has the phases that ran beside them, and their end. With UPDATE_PHASES=1 the table is written into tests/README.md too.
set -euo pipefail

table=$(awk -F'\t' -v ends="$(date +%s)" -v cores="$(nproc)" '
    function over(until) { if (name != "") { printf "| %s%s | %.1f |\n", name, beside, (until - began) / 60 } }
    BEGIN { print "| phase | minutes |"; print "|---|---:|" }
    FNR == 1 && NR > 1 { over(ends); name = ""; beside = ", beside the others" }
    { over($1); if (first == "") first = $1; began = $1; name = $2 == "end" ? "" : $2 }
    END { over(ends); printf "| all, on %d cores | %.1f |\n", cores, (ends - first) / 60 }
' "$1" "$2")
printf '%s\n' "$table"

if [ "${UPDATE_PHASES:-}" = 1 ]; then
    readme=tests/README.md
    cd "$(dirname "$0")/.."
    begin='<!-- phases: written by UPDATE_PHASES=1 make test -->' end='<!-- end of phases -->'
    grep -qF "$begin" "$readme" && grep -qF "$end" "$readme" || { echo "$readme has no place for the phases" >&2; exit 1; }
    written=$(awk -v begin="$begin" -v end="$end" -v table="$table" '
        $0 == end { inside = 0 }
        !inside { print }
        $0 == begin { inside = 1; print ""; print table; print "" }
    ' "$readme")
    printf '%s\n' "$written" > "$readme"
fi
